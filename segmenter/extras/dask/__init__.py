"""Work on the processes of a Dask cluster: one of this machine's, or one that is running somewhere.

Dask is the extra `cluster`; it is imported only where one of the options is given.
"""
