"""Several processes that share what is to be tested (FIRN_LANES, `run.py`): what each of them does is what it comes to first."""
import os

# A lane's number, and where lanes note what they have begun. Not for processes that a test starts: they are nobody's lane.
NUMBER = int(os.environ.pop("FIRN_LANE", 1))
CLAIMS = os.environ.pop("FIRN_CLAIMS", None)
# Where this process puts what it has counted. What a test starts counts for itself.
RESULTS = os.environ.pop("FIRN_RESULTS", None)
# The lane that begins with restore.
OF_RESTORE = 1


def claim(name):
    """Whether this process is to do what has this name: no other has begun it."""
    if CLAIMS is None:
        return True
    try:
        os.close(os.open(os.path.join(CLAIMS, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
