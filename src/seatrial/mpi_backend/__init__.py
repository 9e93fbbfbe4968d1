"""An MPI backend of torch.distributed on mpi4py, for the torch that pip installs. Users ``import seatrial.mpi``.

It can be read without the rest of seatrial, of which it imports only errors. Read in this order:

1. ``register.py``: registration with torch, the creation of groups, and the ``mpi://`` rendezvous. 2. ``group.py``: the
process group, one method for each operation that torch calls. 3. ``lane.py``: the order of collectives and their
threads; ``work.py``: the operations in flight that callers wait for.

Then by need: ``types.py`` (tensors, types and reductions in MPI's terms), ``staging.py`` (copies to and from host
memory), ``library.py`` (finding and loading the launcher's MPI), ``memory.py`` (glibc's malloc) and ``finalize.py``
(the end of the process, without mpi4py). docs/mpi.md is the page for users.
"""
