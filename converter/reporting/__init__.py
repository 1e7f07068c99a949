"""A program seen by people: one page that says what trains, what a step costs and why.

A build puts an account of itself into the file (`account.py`, made by `gather.py`); the page is made from the file.
"""
