"""The tool age, another implementation of the format of encrypted backups."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Age:
    """age's programs, and keys in a folder."""

    def __init__(self, folder):
        tools = os.environ.get("FIRN_TOOLS", os.path.join(ROOT, "target/tools"))
        found = subprocess.run([os.path.join(ROOT, "scripts/install-age.sh"), tools], text=True,
                               stdout=subprocess.PIPE, check=True).stdout.strip().splitlines()
        self.bin = found[-1]
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def run(self, program, *args, env=None, **kw):
        env = {**os.environ, "PATH": self.bin + ":" + os.environ["PATH"], **(env or {})}
        return subprocess.run([os.path.join(self.bin, program), *args], env=env, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **kw).stdout

    def key(self, name):
        """A new identity's file, and its recipient."""
        path = os.path.join(self.folder, name + ".txt")
        if os.path.exists(path):
            os.unlink(path)
        self.run("age-keygen", "-o", path)
        return path, self.run("age-keygen", "-y", path).decode().strip()
