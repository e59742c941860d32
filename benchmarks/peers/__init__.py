"""Other table formats that read merged changes, each in an environment and a process of its own.

`protocol` and the modules of the peers run there; all others run here.
"""
