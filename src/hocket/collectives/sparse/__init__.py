"""Sums of the largest elements of each rank's array: what is small waits on its rank until it has grown."""
