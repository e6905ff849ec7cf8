"""Several processes that share what is to be tested (FIRN_LANES, `run.py`): what each of them does is what it comes to first."""
import hashlib
import json
import os

# A lane's number, and where lanes note what they have begun. Not for processes that a test starts: they are nobody's lane.
NUMBER = int(os.environ.pop("FIRN_LANE", 1))
CLAIMS = os.environ.pop("FIRN_CLAIMS", None)
# Where this process puts what it has counted. What a test starts counts for itself.
RESULTS = os.environ.pop("FIRN_RESULTS", None)
# The lane that begins with restore.
OF_RESTORE = 1


def count(passed, failed, skipped):
    """Leave what this process has counted for who has started it: all of it or nothing."""
    if RESULTS:
        with open(RESULTS + ".new", "w") as f:
            json.dump({"passed": passed, "failed": failed, "skipped": skipped}, f)
        os.replace(RESULTS + ".new", RESULTS)


def counted(file):
    """What a process has left there; None if it has ended before that."""
    try:
        with open(file) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def claim(name):
    """Whether this process is to do what has this name: no other has begun it."""
    if CLAIMS is None:
        return True
    try:
        # (Names of cases have all kinds of characters.)
        file = hashlib.sha256(name.encode()).hexdigest()
        os.close(os.open(os.path.join(CLAIMS, file), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
