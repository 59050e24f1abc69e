"""A fuzzer for all that opens files: `python -m fuzz --help`, or `make fuzz`.

Every case is a file that this program, or a user, could have, with some bytes changed, opened by the function that opens
it in earnest. It has to be refused in one line or be accepted; whatever else happens is a finding.
"""
