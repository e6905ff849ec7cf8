"""What happens to a backup while others look at it, remove it or make one in its place: each held where it matters."""
import errno
import os
import shutil
import time

from backup import expire
from backup.expire import DAY, dated, names, some, source, states
from backup.zoo import place
from harness.hold import Hold, keeping, links, refusing
from harness.program import firn, start


def ended(process, code):
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, (process.returncode, out, err)
    return out + err


def sound(cluster, path):
    firn(cluster, "backup", "verify", "-q", path)


def slow(cluster, path, what, **env):
    """A backup that is held at a moment."""
    hold = Hold(cluster, what)
    process = start(cluster, "backup", "small", path, "-j", "2", env={**hold.env, **env})
    hold.reached(process)
    return hold, process


def finished_meanwhile(cluster):
    """What is surveyed as unfinished or old is something else when its turn comes."""
    source(cluster)
    parent = some(cluster, "ages", [1, 2, 3])
    backup, making = slow(cluster, os.path.join(parent, "slow"), "create:toc.dat")
    # The survey comes to it last, and waits for somebody to write.
    gate = os.path.join(parent, "zzz", "manifest.json")
    os.mkdir(os.path.dirname(gate))
    os.mkfifo(gate)
    hold = Hold(cluster, "nothing:", ahead=2 * DAY)
    expiring = start(cluster, "backup", "expire", parent, "--keep=1", "--incomplete-hours=24", env=hold.env)
    end = time.time() + 60
    while True:
        try:
            writer = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as e:
            assert e.errno == errno.ENXIO and time.time() < end and expiring.poll() is None, expiring.communicate()
            time.sleep(0.01)
    backup.go()
    ended(making, 0)
    shutil.rmtree(os.path.join(parent, "d003"))
    shutil.copytree(os.path.join(parent, "d001"), os.path.join(parent, "d003"))
    dated(os.path.join(parent, "d003"), 0)
    os.close(writer)
    told = ended(expiring, 0)
    assert names(parent) == ["d001", "d003", "slow", "zzz"], (names(parent), told)
    assert told.count("changed or finished meanwhile") == 2, told
    for name in ("d001", "d003", "slow"):
        sound(cluster, os.path.join(parent, name))
        assert "expired.json" not in os.listdir(os.path.join(parent, name))


def taken_for_dead(cluster):
    """An unfinished backup is taken for dead: either it ends in an error, or it stays."""
    source(cluster)
    for place_of_expire, lives in (("create:expired.json", True), ("unlink:unfinished.json", False), ("unlink:toc.dat", False)):
        for place_of_backup in ("create:toc.dat", "create:manifest.json.*.tmp", "rename:manifest.json"):
            parent = some(cluster, "ages", [1])
            path = os.path.join(parent, "slow")
            backup, making = slow(cluster, path, place_of_backup)
            # It is not old yet.
            expire.expire(cluster, parent, "--keep=1", "--incomplete-hours=24")
            assert os.path.exists(path)
            hold = Hold(cluster, place_of_expire, ahead=2 * DAY)
            expiring = start(cluster, "backup", "expire", parent, "--keep=1", "--incomplete-hours=24", env=hold.env)
            hold.reached(expiring)
            backup.go()
            told = ended(making, 0 if lives else 1)
            hold.go()
            ended(expiring, 0)
            if lives:
                sound(cluster, path)
                assert set(states(cluster, parent)) == {"d001", "slow"} and "expired.json" not in os.listdir(path)
                continue
            assert "is not this backup's any more" in told, told
            assert not os.path.exists(os.path.join(path, "manifest.json")), os.listdir(path)
            expire.expire(cluster, parent, "--keep=1")
            assert names(parent) == ["d001"], names(parent)


def overwritten_alive(cluster):
    """--overwrite-incomplete against a run that lives and comes to its end meanwhile."""
    source(cluster)
    for number, moment in enumerate(("create:toc.dat", "create:manifest.json.*.tmp", "rename:manifest.json")):
        path = place(cluster, f"twice-{number}")
        backup, making = slow(cluster, path, moment)
        hold = Hold(cluster, "unlink:*.dat*")
        other = start(cluster, "backup", "small", path, "--overwrite-incomplete", env=hold.env)
        hold.reached(other)
        backup.go()
        told = ended(making, 1)
        assert "is not this backup's any more" in told, told
        hold.go()
        out, err = other.communicate(timeout=120)
        if other.returncode:
            # A file that the first run made after the second had looked is in its way, and is never taken for its own.
            assert "File exists" in err and "manifest.json" not in os.listdir(path), (out, err)
            firn(cluster, "backup", "small", path, "--overwrite-incomplete")
        sound(cluster, path)
        assert not {"expired.json", "unfinished.json"} & set(os.listdir(path))
    # It was at its end before: then it stays.
    path = place(cluster, "first")
    backup, making = slow(cluster, path, "create:toc.dat")
    hold = Hold(cluster, "rename:unfinished.json")
    other = start(cluster, "backup", "small", path, "--overwrite-incomplete", env=hold.env)
    hold.reached(other)
    backup.go()
    ended(making, 0)
    hold.go()
    assert "holds a complete backup" in ended(other, 2)
    sound(cluster, path)
    assert states(cluster, path) == {".": "complete"}


def cut(cluster, path):
    """An unfinished backup of two days ago, and one of its files."""
    _, making = slow(cluster, path, "create:toc.dat")
    making.kill()
    making.communicate()
    dated(path, 2)
    return next(name for name in os.listdir(path) if name.split(".")[0].isdigit())


def refused(cluster, path):
    r = firn(cluster, "backup", "small", path, "--overwrite-incomplete", code=2)
    assert "is being removed" in r.stderr, r.stderr


def killed(cluster, path, moment):
    """--overwrite-incomplete that was killed there."""
    hold = Hold(cluster, moment)
    other = start(cluster, "backup", "small", path, "--overwrite-incomplete", env=hold.env)
    hold.reached(other)
    other.kill()
    other.communicate()


def overwritten_and_expired(cluster):
    """--overwrite-incomplete beside expire: one of the two leaves all as it is, as files of the same names are about to come."""
    source(cluster)
    for flags in ((), ("--incomplete-hours=24",)):
        parent = some(cluster, "ages", [1])
        path = os.path.join(parent, "slow")
        hold = Hold(cluster, f"unlink:{cut(cluster, path)}")
        other = start(cluster, "backup", "small", path, "--overwrite-incomplete", env=hold.env)
        hold.reached(other)
        left = os.listdir(path)
        told = expire.expire(cluster, parent, "--keep=1", *flags).stdout
        assert "leave slow" in told and os.listdir(path) == left, (told, os.listdir(path))
        hold.go()
        ended(other, 0)
        sound(cluster, path)
        assert states(cluster, parent)["slow"] == "complete" and "expired.json" not in os.listdir(path)
    for moment in ("unlink:unfinished.json", None):
        parent = some(cluster, "ages", [1])
        path = os.path.join(parent, "slow")
        file = cut(cluster, path)
        hold = Hold(cluster, moment or f"unlink:{file}")
        expiring = start(cluster, "backup", "expire", parent, "--keep=1", "--incomplete-hours=24", env=hold.env)
        hold.reached(expiring)
        left = os.listdir(path)
        refused(cluster, path)
        assert os.listdir(path) == left
        hold.go()
        ended(expiring, 0)
        assert names(parent) == ["d001"]
        firn(cluster, "backup", "small", path, "--overwrite-incomplete")
        sound(cluster, path)
    # Each has had its first look before the other came.
    for moment in ("create:expired.json", "unlink:unfinished.json", None):
        parent = some(cluster, "ages", [1])
        path = os.path.join(parent, "slow")
        file = cut(cluster, path)
        late = moment == "create:expired.json"
        over = Hold(cluster, f"unlink:{file}" if late else "rename:unfinished.json")
        hold = Hold(cluster, moment or f"unlink:{file}")
        held = {"expire": (hold, [parent, "--keep=1", "--incomplete-hours=24"]), "small": (over, [path, "--overwrite-incomplete"])}
        processes = []
        for which in ("expire", "small") if late else ("small", "expire"):
            processes.append(start(cluster, "backup", which, *held[which][1], env=held[which][0].env))
            held[which][0].reached(processes[-1])
        expiring, other = processes if late else reversed(processes)
        if late:
            # expire looks again and finds another marker.
            hold.go()
            assert "changed or finished meanwhile" in ended(expiring, 0)
            over.go()
            ended(other, 0)
            sound(cluster, path)
            continue
        over.go()
        assert "is being removed" in ended(other, 2)
        hold.go()
        told = ended(expiring, 0)
        if moment:
            assert names(parent) == ["d001"], told
            continue
        # The marker that was exchanged is left, and its time begins now.
        assert names(path) == ["expired.json", "unfinished.json"] and states(cluster, parent)["slow"] == "incomplete", names(path)
        refused(cluster, path)
        later = Hold(cluster, "nothing:", ahead=2 * DAY)
        expire.expire(cluster, parent, "--keep=1", "--incomplete-hours=24", env=later.env)
        assert names(parent) == ["d001"]
    # An overwriter that was killed is taken for dead when its time has come, too.
    parent = some(cluster, "ages", [1])
    path = os.path.join(parent, "slow")
    killed(cluster, path, f"unlink:{cut(cluster, path)}")
    expire.expire(cluster, parent, "--keep=1", "--incomplete-hours=24")
    assert names(parent) == ["d001", "slow"]
    later = Hold(cluster, "nothing:", ahead=2 * DAY)
    expire.expire(cluster, parent, "--keep=1", "--incomplete-hours=24", env=later.env)
    assert names(parent) == ["d001"]


def overwritten_asleep(cluster):
    """A run that was stopped long ago comes to its end when another has made the whole backup in its place: that stays whole."""
    source(cluster)
    moments = ("create:toc.dat", "create:manifest.json.*.tmp", "rename:manifest.json")
    for number, (moment, which) in enumerate((moment, which) for moment in moments for which in ("", "no", "none", "error")):
        path = place(cluster, f"asleep-{number}")
        backup, making = slow(cluster, path, moment, LINKS=which)
        firn(cluster, "backup", "small", path, "--overwrite-incomplete", env=links(cluster, which))
        backup.go()
        told = ended(making, 1)
        assert ("File exists" if moment == "create:toc.dat" else "is not this backup's any more") in told, told
        sound(cluster, path)
        assert states(cluster, path) == {".": "complete"}


def overwritten_twice(cluster):
    """Two --overwrite-incomplete, of which the first sleeps before it removes what it has listed, and finds the second one's files."""
    source(cluster)
    path = place(cluster, "overwritten-twice")
    hold = Hold(cluster, f"unlink:{cut(cluster, path)}")
    first = start(cluster, "backup", "small", path, "--overwrite-incomplete", env=hold.env)
    hold.reached(first)
    later = Hold(cluster, "create:toc.dat")
    second = start(cluster, "backup", "small", path, "--overwrite-incomplete", env=later.env)
    later.reached(second)
    hold.go()
    assert "is not this backup's any more" in ended(first, 1)
    later.go()
    assert "is not there any more" in ended(second, 1)
    assert states(cluster, path) == {".": "incomplete"}
    firn(cluster, "backup", "small", path, "--overwrite-incomplete")
    sound(cluster, path)


def named(cluster):
    """The moment in which a manifest gets its name: two at once there, and a server whose answer is lost."""
    source(cluster)
    for number, which in enumerate(("", "no", "none", "error")):
        path = place(cluster, f"named-{number}")
        first, making = slow(cluster, path, "rename:manifest.json", LINKS=which)
        second = Hold(cluster, "rename:manifest.json")
        other = start(cluster, "backup", "small", path, "--overwrite-incomplete", env={**second.env, "LINKS": which})
        second.reached(other)
        first.go()
        told = ended(making, 1)
        assert "is not this backup's any more" in told, (which, told)
        assert states(cluster, path) == {".": "incomplete"}
        second.go()
        ended(other, 0)
        sound(cluster, path)
        assert not [name for name in names(path) if name.endswith("tmp")], names(path)
    for which in ("lost", "none", "error"):
        path = place(cluster, which)
        firn(cluster, "backup", "small", path, env=links(cluster, which))
        sound(cluster, path)
        assert not [name for name in names(path) if name.endswith("tmp")], names(path)
    # The manifest tells enough: who cannot remove the marker has a backup all the same.
    path = place(cluster, "kept")
    firn(cluster, "backup", "small", path, env=keeping(cluster, "unfinished.json"))
    sound(cluster, path)
    assert "unfinished.json" in names(path) and states(cluster, path) == {".": "complete"}


def overwriter_killed(cluster):
    """--overwrite-incomplete that is killed anywhere is gone on from; a note of expire, however little of it a crash has left, is expire's."""
    source(cluster)
    path = place(cluster, "nothing-left")
    file = cut(cluster, path)
    for moment in ("create:unfinished.json.*.tmp", "rename:unfinished.json", f"unlink:{file}", "create:toc.dat", "create:manifest.json.*.tmp"):
        killed(cluster, path, moment)
        assert states(cluster, path) == {".": "incomplete"}, moment
        r = firn(cluster, "backup", "small", path, code=2)
        assert "--overwrite-incomplete" in r.stderr, r.stderr
    firn(cluster, "backup", "small", path, "--overwrite-incomplete")
    sound(cluster, path)
    for n in range(3):
        parent = some(cluster, "ages", [1])
        path = os.path.join(parent, "slow")
        cut(cluster, path)
        for name in names(path) if n == 2 else ["unfinished.json"][:n]:
            os.remove(os.path.join(path, name))
        with open(os.path.join(path, "expired.json"), "w"):
            pass
        left = names(path)
        refused(cluster, path)
        assert names(path) == left
        expire.expire(cluster, parent, "--keep=1")
        assert os.path.exists(path) == (n == 0)
        expire.expire(cluster, parent, "--keep=1", "--incomplete-hours=24")
        assert names(parent) == ["d001"]


def half_marker(cluster):
    """A crash while the marker was written left half of it: the file's time counts. What earlier builds have left beside it goes, too."""
    source(cluster)
    parent = some(cluster, "ages", [1])
    for name, text, days in (("empty", "", 2), ("half", '{"database":', 2), ("new", "", 0)):
        path = os.path.join(parent, name)
        os.mkdir(path)
        for file in ("manifest.json.tmp", "unfinished.json"):
            with open(os.path.join(path, file), "w") as f:
                f.write(text)
            os.utime(os.path.join(path, file), (time.time() - days * DAY,) * 2)
    expire.expire(cluster, parent, "--keep=1")
    assert names(parent) == ["d001", "empty", "half", "new"]
    expire.expire(cluster, parent, "--keep=1", "--incomplete-hours=24")
    assert names(parent) == ["d001", "new"]
    path = os.path.join(parent, "new")
    firn(cluster, "backup", "small", path, "--overwrite-incomplete")
    sound(cluster, path)
    assert "manifest.json.tmp" not in names(path)


def last_of_all(cluster):
    """A backup that was taken for dead is killed when all was removed but what it just writes: that keeps nobody away, and goes."""
    source(cluster)
    parent = some(cluster, "ages", [1])
    for path in (os.path.join(parent, name) for name in ("slow", "other")):
        _, making = slow(cluster, path, "rename:manifest.json")
        making.kill()
        making.communicate()
        for name in names(path):
            if not name.endswith(".tmp"):
                os.remove(os.path.join(path, name))
        assert len(names(path)) == 1 and states(cluster, parent)[os.path.basename(path)] == "expired", names(path)
    firn(cluster, "backup", "small", path)
    sound(cluster, path)
    told = expire.expire(cluster, parent, "--keep=2").stdout
    assert names(parent) == ["d001", "other"], told


def unreadable(cluster):
    """Folders and manifests that cannot be read, and backups that cannot be removed, are told of and keep nothing else from its turn."""
    source(cluster)
    parent = some(cluster, "ages", [1, 2, 3])
    os.mkdir(os.path.join(parent, "lost+found"))
    r = firn(cluster, "backup", "list", parent, env=refusing(cluster, "lost+found"))
    assert r.stdout.count("complete") == 3 and "lost+found" in r.stderr, (r.stdout, r.stderr)
    r = firn(cluster, "backup", "list", parent, env=refusing(cluster, "d002/manifest.json"))
    assert r.stdout.count(" complete") == 2 and "damaged manifest" in r.stdout and "Permission denied" in r.stderr, (r.stdout, r.stderr)
    r = expire.expire(cluster, parent, "--keep=1", "--dry-run", env=refusing(cluster, "d003/manifest.json"))
    assert "leave d003" in r.stdout and "would remove d002" in r.stdout, r.stdout
    r = expire.expire(cluster, parent, "--keep=1", env=refusing(cluster, "d002/expired.json"), code=1)
    assert 'could not remove backup "d002"' in r.stderr and "could not remove d002" in r.stdout, (r.stdout, r.stderr)
    assert names(parent) == ["d001", "d002", "lost+found"], names(parent)
    sound(cluster, os.path.join(parent, "d002"))
    # An incremental backup beside all that, and in a folder that cannot be read.
    for refused, base in (("lost+found", "d001"), ("d002/manifest.json", "d001"), ("ages", None)):
        path = os.path.join(parent, "new")
        r = firn(cluster, "backup", "small", path, "--incremental", "--no-sync", env=refusing(cluster, refused))
        assert ("all tables are copied: could not read directory" in r.stderr) == (base is None), r.stderr
        sound(cluster, path)
        shutil.rmtree(path)


CASES = {"expire finished meanwhile": finished_meanwhile, "expire taken for dead": taken_for_dead, "expire overwritten alive": overwritten_alive,
         "expire overwritten and expired": overwritten_and_expired, "expire overwritten asleep": overwritten_asleep,
         "expire overwritten twice": overwritten_twice, "expire manifest named": named, "expire overwriter killed": overwriter_killed, "expire half marker": half_marker, "expire last of all": last_of_all, "expire unreadable": unreadable}
