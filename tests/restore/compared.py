"""What the end of a restore compares: no difference where there is none, none unseen where there is one. And how these tests compare."""
from restore import common


def rows_of_tables(_world):
    """Rows may come in any order, but each stays in its table, and all else where it is, also behind a table that has none."""
    def dump(*blocks):
        return b"".join(b"--\n-- Name: %s; Type: SOME\n--\n\n%s\n\n" % (name, text) for name, text in blocks)

    def table(name, rows):
        return name, b"COPY public.%s (a) FROM stdin;\n%s\\.\n" % (name, rows)
    empty, last = table(b"e", b""), table(b"z", b"1\n")
    common.same(dump(empty, table(b"f", b"1\n2\n"), last), dump(empty, table(b"f", b"2\n1\n"), last))
    for left, right in (((table(b"f", b""), table(b"g", b"1\n")), (table(b"f", b"1\n"), table(b"g", b""))),
                        ((table(b"f", b"1\n"), table(b"g", b"2\n")), (table(b"f", b"2\n"), table(b"g", b"1\n"))),
                        (((b"a", b"GRANT x;\n"), (b"b", b"GRANT y;\n")), ((b"a", b"GRANT y;\n"), (b"b", b"GRANT x;\n"))),
                        (((b"a", b"SELECT 1;\nSELECT 2;\n"),), ((b"a", b"SELECT 2;\nSELECT 1;\n"),))):
        for compare in (common.same, common.same_blocks):
            a, b = dump(empty, *left, last), dump(empty, *right, last)
            try:
                compare(a, b)
            except AssertionError:
                continue
            raise RuntimeError(f"{compare.__name__} takes for the same:\n{a.decode()}\n{b.decode()}")


def cases(world):
    yield "compared rows of tables", lambda: rows_of_tables(world)
