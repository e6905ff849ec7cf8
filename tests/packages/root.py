"""A new Debian with a server, in namespaces of its own: nothing of it is left when it ends, and this machine sees nothing of it."""
import os
import platform
import shutil
import subprocess
import tempfile

from harness.tally import Missing

HERE = os.path.dirname(os.path.abspath(__file__))
# The first process of the new Debian waits, and takes leave of servers that end.
START = """set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount --bind /dev "$2/root/dev"
mount -t tmpfs tmpfs "$2/root/dev/shm"
exec chroot "$2/root" /bin/sh -c 'echo ready; sleep infinity & wait'
"""


class Root:
    def __init__(self, major):
        if os.getuid() != 0 or not os.path.exists("/etc/debian_version"):
            raise Missing("needs to be root on Debian")
        kept = os.path.join(os.environ["FIRN_TOOLS"], f"debian-{platform.machine()}-postgresql-{major}")
        subprocess.run([os.path.join(HERE, "root.sh"), kept, str(major)], check=True)
        self.folder = tempfile.mkdtemp(prefix="firn-packages-", dir="/tmp")
        for name in ("upper", "work", "root"):
            os.mkdir(os.path.join(self.folder, name))
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c", START, "sh", kept, self.folder],
            stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            self.end()
            raise Missing("this machine has no namespaces or overlays")
        with open(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children") as f:
            self.first = f.read().split()[0]

    def run(self, *args, check=True, user="root", **kw):
        """A command in there, with none of this machine's environment."""
        command = ["nsenter", "--target", self.first, "--mount", "--pid", "--ipc", "--uts", "--root", "--wd", "env", "-i",
                   "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "PGTZ=UTC",
                   *(["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user != "root" else []), *args]
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.STDOUT)
        result = subprocess.run(command, text=True, **kw)
        assert not check or result.returncode == 0, f"{' '.join(args)}: {result.stdout[-3000:]}"
        return result

    def put(self, path):
        """Copy a file into /root there."""
        with open(path, "rb") as f:
            data = f.read()
        self.write("/root/" + os.path.basename(path), data)
        return "/root/" + os.path.basename(path)

    def write(self, path, data):
        """(By way of the first process's view: what changes below an overlay in use is not seen.)"""
        with open(f"/proc/{self.first}/root{path}", "wb") as f:
            f.write(data)

    def files(self):
        """All there is, but for what every installation leaves a note in, and what servers have of their own."""
        found = self.run("find", "/", "-xdev", "(", "-path", "/var/lib/dpkg", "-o", "-path", "/var/log", "-o", "-path", "/root", "-o", "-path",
                         "/proc", "-o", "-path", "/var/lib/postgresql", "-o", "-path", "/run", "-o", "-path", "/tmp",
                         "-o", "-path", "/etc/postgresql", "-o", "-path", "/var/cache", ")", "-prune", "-o", "-print")
        return set(found.stdout.splitlines())

    def end(self):
        self.holder.kill()
        self.holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Installed:
    """The server that Debian's own programs made there, as the suite `docs` asks for one."""
    root, port = "/var/run/postgresql", 5432

    def __init__(self, debian, major):
        self.debian, self.major = debian, str(major)
        debian.run("pg_dropcluster", "--stop", self.major, "main", check=False)
        debian.run("pg_createcluster", "--locale=C.UTF-8", self.major, "main", "--", "--no-sync")
        debian.write(f"/etc/postgresql/{major}/main/conf.d/firn.conf",
                     b"shared_preload_libraries = 'firn'\nlisten_addresses = ''\nfsync = off\n")
        debian.run("pg_ctlcluster", self.major, "main", "start")
        debian.run("mkdir", "-m", "777", self.root + "/store")

    def run(self, program, *args, env=None, **kw):
        return self.debian.run(program, *args, user="postgres", **kw)

    def stop(self):
        self.debian.run("pg_ctlcluster", self.major, "main", "stop")
