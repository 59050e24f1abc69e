"""Fuzzer for everything that opens files: `python -m fuzz --help`, or `make fuzz`.

Each case is a file as this program or a user has it, with some bytes changed, opened by the function that
opens it in earnest. It has to be refused in one line or be accepted; whatever else happens is a finding.
"""
