"""`make soak`: mixed load for as long as wanted, with kill -9 of the broker every 20 seconds, and then the reckoning.

`loads.py` has those who write, `company.py` the groups, copies, readers and the administrator, `watch.py` looks at the
process from outside, `run.py` lets all of it happen at once, `report.py` says what came of it.
"""
