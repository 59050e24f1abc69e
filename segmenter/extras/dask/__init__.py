"""Work on the processes of a Dask cluster: processes of this machine, or a running cluster.

Dask is the extra `cluster`; it is imported only if one of its options is given.
"""
