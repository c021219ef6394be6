"""Runs a schedule's actions on a rank's stages."""
