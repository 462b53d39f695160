"""The methods that FLUX is compared with, one file each."""
