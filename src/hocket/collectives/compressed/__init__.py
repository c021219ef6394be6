"""Sums of whole arrays with fewer bytes: each element is sent with less precision, and the error waits on its rank."""
