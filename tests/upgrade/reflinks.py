"""A file system that clones files, for pg_upgrade's mode --clone: XFS in a file, where the tests' folder has none itself."""
import os
import shutil
import subprocess
import tempfile

from harness.cluster import FOLDER
from harness.tally import Missing

SIZE = 8 << 30


def clones(folder):
    """Whether files in `folder` can be cloned."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        a, b = os.path.join(place, "a"), os.path.join(place, "b")
        open(a, "w").close()
        return subprocess.run(["cp", "--reflink=always", a, b], stderr=subprocess.DEVNULL).returncode == 0


class Reflinks:
    """A folder in which files can be cloned, until it is closed."""

    def __init__(self):
        self.place = self.mounted = None
        if clones(FOLDER):
            self.folder = FOLDER
            return
        if os.getuid() != 0:
            raise Missing("this file system cannot clone files, and only root can mount one that can")
        if not shutil.which("mkfs.xfs") and subprocess.run(
                ["sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends xfsprogs"],
                env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            raise Missing("this file system cannot clone files, and there is no mkfs.xfs")
        self.place = tempfile.mkdtemp(prefix="firn-reflinks-", dir=FOLDER)
        os.chmod(self.place, 0o755)
        image, self.folder = os.path.join(self.place, "image"), os.path.join(self.place, "xfs")
        os.mkdir(self.folder)
        try:
            with open(image, "wb") as f:
                f.truncate(SIZE)
            for command in (["mkfs.xfs", "-q", "-m", "reflink=1", image], ["mount", "-o", "loop", image, self.folder]):
                if (r := subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)).returncode:
                    raise Missing(f"this file system cannot clone files, and none can be made that does: {r.stdout.strip()}")
            self.mounted = True
            os.chmod(self.folder, 0o777)
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.mounted:
            # (Servers that a failed case has left go on; their file system goes with the last of them.)
            subprocess.run(["umount", "--lazy", self.folder], check=True)
        if self.place:
            shutil.rmtree(self.place, ignore_errors=True)
