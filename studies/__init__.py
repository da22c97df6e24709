"""Experiments with a question, a protocol and a result, one folder each: `python -m studies.NAME` from the checkout.

They use the package through its public seams, and are not in the wheel.
"""
