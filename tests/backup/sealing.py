"""A store that fails while the manifest is written, or just before and after: what the run says of the backup is true."""
import json
import os
import signal
import time

from backup.encrypted import age
from backup.expire import source
from backup.faulty import through
from harness.faults import Ruled, is_about
from harness.program import firn, start


def puts_manifest(request):
    return request.method == b"PUT" and request.path.endswith(b"/manifest.json")


def state(cluster, store, url):
    found = [json.loads(line) for line in firn(cluster, "backup", "list", "--json", url, env=store.env).stdout.splitlines()]
    assert len(found) == 1, found
    return found[0]["state"]


def made_again(cluster, store, url, folder):
    """What was left is an unfinished backup, in whose place another is made."""
    assert not os.path.exists(os.path.join(folder, "manifest.json")), os.listdir(folder)
    assert state(cluster, store, url) == "incomplete"
    firn(cluster, "backup", "small", url, "--overwrite-incomplete", env=store.env)
    firn(cluster, "backup", "verify", "-q", url, env=store.env)


def backup(cluster, store, rule, interrupt=None, *flags):
    """A backup to a store of that rule. `interrupt`: a request at which it gets a SIGINT. Where, its folder, exit code, what it said."""
    url, folder = store.new()
    running = []

    def ruled(request):
        if interrupt and running and interrupt(request):
            running.pop().send_signal(signal.SIGINT)
            time.sleep(0.3)
        return rule(request)

    with Ruled(store.gateway.port, ruled) as proxy:
        running.append(start(cluster, "backup", "small", url, "-j", "2", *flags, env=through(proxy, 2)))
        process = running[0]
        _, err = process.communicate(timeout=120)
    return url, folder, process.returncode, err


def after_manifest(at, then):
    """`at` happens to the first request for the manifest, `then` is asked about all that follow."""
    seen = []

    def rule(request):
        if seen:
            return then(request)
        if puts_manifest(request):
            seen.append(request)
            return at
        return None
    return rule


def gone(_):
    return "hung up"


def in_doubt(cluster, store):
    """The store is gone with the manifest, written or not: that nobody knows is said."""
    source(cluster)
    for at, there in (("lost answer", True), (None, True), ("hung up", False)):
        url, folder, code, said = backup(cluster, store, after_manifest(at, gone))
        assert code == 1 and "is not known" in said, (code, said)
        assert os.path.exists(os.path.join(folder, "manifest.json")) == there
        if there:
            firn(cluster, "backup", "verify", "-q", url, env=store.env)
        else:
            made_again(cluster, store, url, folder)


def taken_back(cluster, store):
    """The look after the manifest fails, and the store is there again: the manifest goes, as the exit code says."""
    source(cluster)

    def blind(request):
        return None if is_about(request, b"manifest.json") else "busy"
    url, folder, code, said = backup(cluster, store, after_manifest(None, blind))
    assert code == 1 and "is not known" not in said, (code, said)
    made_again(cluster, store, url, folder)


def interrupted(cluster, store):
    """Ctrl-C while the manifest is written, or looked at: it is complete and says so, or it says that nobody knows."""
    source(cluster)

    for at in (None, "lost answer", "busy"):
        url, _, code, said = backup(cluster, store, after_manifest(at, lambda _: None), puts_manifest)
        assert code == 0 and state(cluster, store, url) == "complete", (at, code, said)
        firn(cluster, "backup", "verify", "-q", url, env=store.env)
    url, folder, code, said = backup(cluster, store, after_manifest("lost answer", gone), puts_manifest)
    assert code == 130 and "is not known" in said and "at the user's request" in said, (code, said)
    # Before it Ctrl-C is Ctrl-C.

    def puts_contents(request):
        return request.method == b"PUT" and request.path.endswith(b"/toc.dat")
    url, folder, code, said = backup(cluster, store, lambda r: "hung up" if puts_contents(r) else None, puts_contents)
    assert code == 130 and "is not known" not in said, (code, said)
    made_again(cluster, store, url, folder)


class Late(Ruled):
    """The first request to remove an object of that name is answered by "busy", and done when such an object is written again."""

    def __init__(self, port, name):
        self.name, self.held, self.done = name, None, False
        super().__init__(port, self.hold)

    def hold(self, request):
        if self.held or request.method not in (b"DELETE", b"POST") or not is_about(request, self.name):
            return None
        self.held = request
        return "busy"

    def _ask(self, request):
        answer = super()._ask(request)
        if request.method == b"PUT" and is_about(request, self.name) and not self.done:
            self.done = True
            super()._ask(self.held)
        return answer


def removed_late(cluster, store):
    """A request of --overwrite-incomplete to remove a file comes when the new one of its name is there: that is no backup."""
    source(cluster)
    for flags in ((), ("-r", age(cluster).key("one")[1])):
        url, folder, code, said = backup(cluster, store, lambda r: "busy" if puts_manifest(r) else None, None, *flags)
        assert code == 1 and "is not known" not in said, (code, said)
        for name in (next(n for n in sorted(os.listdir(folder)) if ".dat" in n), "toc.dat" + (".age" if flags else "")):
            with Late(store.gateway.port, name.encode()) as proxy:
                r = firn(cluster, "backup", "small", url, *flags, "--overwrite-incomplete", env=through(proxy), code=1)
                assert proxy.done and f'file "{name}" of the backup' in r.stderr, r.stderr
        made_again(cluster, store, url, folder)


STORE_CASES = {"sealing in doubt": in_doubt, "sealing taken back": taken_back, "sealing interrupted": interrupted,
               "sealing removed late": removed_late}
