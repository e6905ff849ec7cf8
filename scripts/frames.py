#!/usr/bin/env python3
"""Errors through frames: who may call PostgreSQL how, in crates/firn/src.

A PostgreSQL error is a longjmp, a Rust panic unwinds; neither may pass through the other's frames. So there are two
kinds of Rust code, and this program tells them apart by following calls from every `extern "C-unwind" fn`:

- A frame stands directly below C: such a function, outside of `callback(...)`, and the functions that it calls there.
  Errors may pass it by longjmp, so it makes nothing that would have to be dropped, and a panic must not leave it. It may
  call functions known below as harmless, `direct::` functions, `heap!`, C function pointers, and other frames.
- All other code runs inside `callback(...)`, which turns panics into errors. There an error must arrive as a panic: what
  may longjmp (the above, and every frame that stands for a callback) is called inside `guarded(...)` only.

What a `guarded` closure may own is for the compiler to check (it is Copy). `frames.py` prints what breaks the rules;
`frames.py --self-check` shows that it finds what it must.
"""
import re
import subprocess
import sys
from collections import namedtuple

# Calls that a frame may make: they neither raise, nor panic, nor make anything that owns memory.
HARMLESS = set("""
    Some Ok Err is_null is_some is_some_and is_none as_ref as_mut add cast then_some unwrap_or unwrap_or_default copied
    get iter into_iter any map map_or all position null_mut null zeroed from from_inner into_inner to_u32 value store load
    fetch_add saturating_add saturating_sub max min contains eq ne is_empty len size_of next_multiple_of from_raw_parts
    from_raw_parts_mut rotate_right replace as_mut_ptr as_ptr from_ptr and_then find skip_while take AssertUnwindSafe
    offset_of enumerate unwrap_or_else swap addr_of Slot Rel Tid Snap as_slice f64 u32 i32 u64 u16 i64 set_var get_or_insert_with
""".split())
# Functions of the crate that frames may call though they are no frames by the rules, and why.
# Methods of the crate that frames may call: they read or write fields.
METHODS = set("""
    is_firn oid live pages write raw of is_virtual is_marked set_tid ready scan start sees_at_once
""".split())
# What `ext::unfailing` declares, and modules of that name in `compat/`, for what differs between versions: looks into the session's own memory, or sets a field there. Each was read in PostgreSQL's source for that.
UNFAILING = {"bms_next_member", "CheckRelationLockedByMe", "MemoryContextRegisterResetCallback", "TransactionIdPrecedes", "pgstat_count_io_op"}
# Variables that hold pointers to Rust functions, not to C's.
RUST_POINTERS = {"handler", "claim"}
TRUSTED = {
    "pg/errors.rs:copy_error": "called while an error is being raised; makes copies in memory that lasts",
    "pg/errors.rs:callback": "the way from frames to other code",
    "pg/errors.rs:raise": "the end of that way",
    "pg/memory.rs:drop_boxed": "catches panics itself; destructors leave PostgreSQL alone there",
    "entry/tableam/mod.rs:build": "fills a static, with functions and a copy of heapam's constants",
    "pg/xact.rs:has_xid": "reads a variable of PostgreSQL's, which cannot fail",
    "pg/heap.rs:am": "asks PostgreSQL for the address of a constant, which cannot fail",
}
ENTRY = ("callback", "in_scan", "init")
GUARDS = ("guarded", "counted_as")
KEYWORDS = set("if while match for return in let loop fn move unsafe else as use pub mod impl where ref mut dyn break".split())

Function = namedtuple("Function", "file name owner params head body extern")


def blank(text):
    """The source with comments, strings and characters blanked, positions kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.S)

    def wipe(m):
        s = m.group(0)
        if s.startswith('"C-unwind"'):
            return s
        return re.sub(r"[^\n]", " ", s)
    return pattern.sub(wipe, text)


def closing(text, at):
    """Position of the bracket that closes the one at `at`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    stack = []
    for i in range(at, len(text)):
        if text[i] in pairs:
            stack.append(pairs[text[i]])
        elif stack and text[i] == stack[-1]:
            stack.pop()
            if not stack:
                return i
    return len(text) - 1


def functions(file, text):
    """All functions with a body; `owner` is the type whose `impl` they are in."""
    owners = []
    for m in re.finditer(r"\bimpl\b[^{;]*?\{", text):
        head = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", m.group(0)))
        names = re.findall(r"(\w+)\s*(?:\{|where)", head)
        owners.append((m.end() - 1, closing(text, m.end() - 1), names[-1] if names else ""))
    found = []
    for m in re.finditer(r"\bfn\s+(\$?\w+)\s*(<[^(]*>)?\s*\(", text):
        close = closing(text, m.end() - 1)
        # The type of an array has a semicolon, too.
        rest = re.compile(r"(?:[^{;\[]|\[[^\]]*\])*([{;])").match(text, close)
        if not rest or rest.group(1) == ";":
            continue
        start = rest.start(1)
        owner = next((o for a, b, o in reversed(owners) if a < m.start() < b), "")
        line = text.rfind("\n", 0, m.start()) + 1
        before = text[max(0, m.start() - 40):m.start()]
        found.append(Function(file, m.group(1), owner, text[m.end():close], (line, text[line:start]),
                              (start, closing(text, start)), bool(re.search(r'extern\s+"C-unwind"\s*$', before))))
    return found


class Crate:
    def __init__(self, files):
        self.text = {f: blank(t) for f, t in files.items()}
        self.functions = [fn for f, t in self.text.items() for fn in functions(f, t)]
        self.complaints = []
        self.frames = {}
        self.raw = {}

    def stem(self, file):
        # What calls a function there means that of any version.
        if "pg/compat/" in file:
            return "compat"
        name = file.rsplit("/", 1)[-1][:-3]
        return file.rsplit("/", 2)[-2] if name == "mod" else name

    def alias(self, file, name):
        """What `name` stands for in a file, by its `use` lines: (module or None, name)."""
        for m in re.finditer(r"\buse\s+([^;]+);", self.text[file]):
            use = re.sub(r"\s+", " ", m.group(1))
            as_ = re.search(r"(\w+) as %s\b" % re.escape(name), use)
            if as_:
                owner = re.findall(r"(\w+)::(?:\{[^}]*)?%s as" % re.escape(as_.group(1)), use)
                return (owner[-1] if owner else None, as_.group(1))
            if re.search(r"\b%s\b" % re.escape(name), use):
                owner = re.findall(r"(\w+)::(?:\{[^}]*)?\b%s\b" % re.escape(name), use)
                return (owner[-1] if owner else None, name)
        return (None, name)

    def nearest(self, caller, owner, found):
        """Of functions in modules of one name those whose module is in the folder `owner`."""
        def folder(file):
            parts = file.split("/")
            return parts[-3] if parts[-1] == "mod.rs" else parts[-2]
        if owner in (None, "self", "super"):
            owner = folder(caller.file)
        return [f for f in found if folder(f.file) == owner] or found

    def resolve(self, caller, path, name, method):
        """The functions that a call may mean; [] when it is none of the crate's. Methods are not followed: a frame may
        call those that are listed, and none of them may longjmp."""
        if method:
            return []
        same = [f for f in self.functions if f.name == name and not f.owner]
        if path and path[-1] not in ("self", "super", "crate"):
            owner, real = self.alias(caller.file, path[-1])
            return self.nearest(caller, path[-2] if len(path) > 1 else owner, [f for f in same if self.stem(f.file) == real])
        own = [f for f in same if f.file == caller.file]
        if own and not path:
            return own
        module, real = self.alias(caller.file, name)
        same = [f for f in self.functions if f.name == real and not f.owner]
        return [f for f in same if self.stem(f.file) == module] or (same if module or path else [])

    def calls(self, file, start, end):
        text = self.text[file]
        for m in re.finditer(r"((?:[\w$]+\s*::\s*(?:<[^>()]*>\s*::\s*)?)*)([\w$]+)(!?)\s*(?:::<[^;(){}]*?>)?\(", text[start:end]):
            at = start + m.start()
            name = m.group(2)
            before = text[max(0, at - 20):at].rstrip()
            # heap!(callback(...)) names a callback of heapam's.
            if name in KEYWORDS or name == "$" or re.search(r"\bfn$|\bheap!\($", before):
                continue
            path = [p for p in re.split(r"\s*::\s*", re.sub(r"<[^>]*>", "", m.group(1))) if p]
            method = not path and before.endswith(".")
            yield at, path, name, bool(m.group(3)), method

    def spans(self, file, start, end, names):
        """Arguments of calls of these names."""
        return [(at, closing(self.text[file], self.text[file].index("(", at)))
                for at, _, name, macro, method in self.calls(file, start, end) if name in names and not macro and not method]

    def bound(self, fn, name):
        """`name` is a variable of the function: a pointer to a C function, or a closure."""
        text = self.text[fn.file][fn.head[0]:fn.body[1]]
        return re.search(r"\bSome\(%s\)|\blet (mut )?%s\b|[(,|]\s*(mut )?%s\s*[:,|]" % ((re.escape(name),) * 3), text)

    def pointer(self, fn, name):
        """The variable is a pointer to a C function."""
        if any(f.file == fn.file and f.name == name and not f.owner for f in self.functions):
            return False
        text = self.text[fn.file][fn.head[0]:fn.body[1]]
        return name not in RUST_POINTERS and re.search(r"\bSome\(%s\)|\blet %s = PREVIOUS" % ((re.escape(name),) * 2), text)

    def key(self, fn):
        return f"{fn.file.split('src/', 1)[-1]}:{fn.name}"

    def say(self, fn, at, what):
        line = self.text[fn.file].count("\n", 0, at) + 1
        self.complaints.append(f"{fn.file}:{line}: in {fn.name}: {what}")

    def nested(self, fn):
        """Functions defined inside of this one."""
        return [f.body for f in self.functions if f.file == fn.file and fn.body[0] < f.body[0] and f.body[1] < fn.body[1]]

    def raises(self, fn):
        """Errors leave it by longjmp: it stands for a callback, or calls what does, outside of guards."""
        if self.key(fn) in TRUSTED:
            return False
        if fn in self.raw:
            return self.raw[fn]
        self.raw[fn] = False
        skip = self.spans(fn.file, *fn.body, GUARDS + ENTRY) + self.nested(fn)
        for at, path, name, macro, method in self.calls(fn.file, *fn.body):
            if any(a < at <= b for a, b in skip):
                continue
            if self.longjmps(fn, path, name, macro, method):
                self.raw[fn] = True
        return self.raw[fn]

    def longjmps(self, fn, path, name, macro, method):
        if path and path[-1] in ("direct", "raw") or macro and name == "heap":
            return True
        if path and path[-1] == "unfailing":
            return name not in UNFAILING
        if macro:
            return False
        if not method and name in ("callback", "in_scan") or not path and not method and self.pointer(fn, name):
            return True
        if path and path[-1] == "pg_sys":
            return False
        return name not in HARMLESS and any(self.raises(f) for f in self.resolve(fn, path, name, method))

    def frame(self, fn):
        """Check a function as a frame."""
        if fn in self.frames:
            return
        self.frames[fn] = True
        if self.key(fn) in TRUSTED:
            return
        skip = self.spans(fn.file, *fn.body, ENTRY) + self.nested(fn)
        for at, path, name, macro, method in self.calls(fn.file, *fn.body):
            if any(a < at <= b for a, b in skip):
                continue
            if macro:
                if name not in ("heap", "matches"):
                    self.say(fn, at, f"{name}! in a frame below C")
                continue
            if path and path[-1] in ("direct", "raw", "unfailing") or not path and not method and self.bound(fn, name):
                continue
            if path and path[-1] == "pg_sys":
                self.say(fn, at, f"pg_sys::{name} would panic into C: call it inside callback(...), or from `direct`")
                continue
            if name == "guarded":
                self.say(fn, at, "guarded(...) would panic into C: call it inside callback(...)")
                continue
            # Names of types make values of plain ones: what owns memory comes from a function.
            if name in ("abort", "$kind") + ENTRY or name[0].isupper():
                continue
            meant = self.resolve(fn, path, name, method)
            if name in HARMLESS and (method or not meant) or name in METHODS and (method or path and path[-1][0].isupper()):
                continue
            if not meant:
                self.say(fn, at, f"{'::'.join(path + [name])} in a frame below C: it may panic or own memory")
            for f in meant:
                self.frame(f)

    def guarded_only(self, fn):
        """Outside of frames, what may longjmp stands inside of guarded(...)."""
        # What stands in `direct` may longjmp: that is its name's meaning.
        direct = re.search(r"\bmod direct \{", self.text[fn.file])
        if self.key(fn) in TRUSTED or direct and direct.end() < fn.body[0] < closing(self.text[fn.file], direct.end() - 1):
            return
        if fn in self.frames:
            places = [(text_at, end) for text_at, end in self.spans(fn.file, *fn.body, ENTRY)]
        else:
            places = [fn.body]
        fine = self.spans(fn.file, *fn.body, GUARDS) + self.nested(fn)
        for start, end in places:
            inside = start if fn not in self.frames else self.text[fn.file].index("(", start) + 1
            for at, path, name, macro, method in self.calls(fn.file, inside, end):
                if any(a < at <= b for a, b in fine):
                    continue
                if self.longjmps(fn, path, name, macro, method):
                    self.say(fn, at, f"{'::'.join(path + [name])} may longjmp over frames that own memory: call it inside guarded(...)")

    def in_guards(self, fn):
        """What a guarded closure makes inside itself would not be dropped either."""
        for start, end in self.spans(fn.file, *fn.body, GUARDS):
            inside = self.text[fn.file].index("(", start) + 1
            for at, path, name, macro, method in self.calls(fn.file, inside, end):
                fine = path and path[-1] in ("direct", "raw", "pg_sys") or macro and name in ("heap", "matches") or \
                    name in HARMLESS | METHODS or name[0].isupper() or self.bound(fn, name) or \
                    not method and any(f.extern or self.raises(f) for f in self.resolve(fn, path, name, method))
                if not fine:
                    self.say(fn, at, f"{'::'.join(path + [name])} inside guarded(...): it may own memory when an error passes")

    def check(self):
        for fn in self.functions:
            if fn.extern or fn.name in ENTRY and fn.file.endswith(("pg/mod.rs", "entry/tableam/scandesc.rs")):
                self.frame(fn)
        # The macros that declare functions: `$name` is called by C, `$kind` is one of these.
        for fn in self.functions:
            if fn.file.endswith("entry/fmgr.rs") and fn.name in ("single", "set"):
                self.frame(fn)
        for fn in self.functions:
            self.guarded_only(fn)
            self.in_guards(fn)
        return sorted(set(self.complaints))


SELF_CHECK = [
    # (source, what must be complained of; None: nothing)
    ('unsafe extern "C-unwind" fn a(x: P) { callback(|| pg_sys::heap_insert(x)) }', None),
    ('unsafe extern "C-unwind" fn a(x: P) { pg_sys::heap_insert(x) }', "pg_sys::heap_insert"),
    ('unsafe extern "C-unwind" fn a(x: P) { b(x) }\nunsafe fn b(x: P) { pg_sys::heap_insert(x) }', "in b"),
    ('unsafe extern "C-unwind" fn a(x: P) { heap!(tuple_insert(x)) }', None),
    ('unsafe extern "C-unwind" fn a(x: P) { callback(|| heap!(tuple_insert(x))) }', "heap may longjmp"),
    ('unsafe extern "C-unwind" fn a(x: P) { callback(|| guarded(|| heap!(tuple_insert(x)))) }', None),
    ('unsafe extern "C-unwind" fn a(x: P) { let v = Vec::new(); direct::f(x, v) }', "Vec::new"),
    ('unsafe extern "C-unwind" fn a(x: P) { let v = format!("x"); }', "format!"),
    ('unsafe extern "C-unwind" fn a(x: P) { guarded(|| direct::f(x)) }', "guarded"),
    ('unsafe extern "C-unwind" fn a() { if let Some(f) = PREVIOUS { f() } }', None),
    ('unsafe extern "C-unwind" fn a() { callback(|| { if let Some(f) = PREVIOUS { f() } }) }', "f may longjmp"),
    ('unsafe extern "C-unwind" fn a() { b() }\nunsafe fn b() { callback(|| c()) }\nfn c() { b() }', "b may longjmp"),
    ('fn a(t: T) { direct::f(t) }', "direct::f may longjmp"),
    ('fn a(t: T) { unfailing::f(t) }', "unfailing::f may longjmp"),
    ('fn a(t: T) { unfailing::bms_next_member(t) }', None),
    ('fn a(t: T) { guarded(|| direct::f(t)) }', None),
    ('fn a(t: T) { guarded(|| direct::f(t.to_string())) }', "to_string inside"),
    ('fn a(t: T) { guarded(|| pg_sys::f(t)) }', None),
    ('unsafe extern "C-unwind" fn a(x: P) { callback(|| guarded(|| b(x))) }\nunsafe extern "C-unwind" fn b(x: P) { direct::f(x) }', None),
    ('unsafe extern "C-unwind" fn a(x: P) { callback(|| b(x)) }\nunsafe extern "C-unwind" fn b(x: P) { direct::f(x) }', "b may longjmp"),
]


def self_check():
    wrong = 0
    for source, wanted in SELF_CHECK:
        said = Crate({"src/pg/x.rs": source}).check()
        if not said and wanted or said and (wanted is None or not any(wanted in s for s in said)):
            print(f"frames.py is blind: {source!r}: wanted {wanted!r}, said {said}", file=sys.stderr)
            wrong += 1
    return wrong


def main():
    if self_check():
        return 1
    if "--self-check" in sys.argv:
        return 0
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "crates/firn/src/*.rs"], text=True).split()
    said = Crate({n: open(n).read() for n in names}).check()
    for line in said:
        print(line, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
