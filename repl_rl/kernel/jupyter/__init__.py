"""Kernels of any Jupyter kernelspec, through plain jupyter_client, and the provisioner of our own kernelspec."""
