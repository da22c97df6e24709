"""Run exported rollouts again, and report what came out differently and why.

`notebooks` reads what is to be replayed and replays it, `comparison` names the differences.
"""
