-- What a world's databases have: values that are wide where they shall be, and how tables are looked at.
CREATE EXTENSION firn; CREATE EXTENSION amcheck;
CREATE FUNCTION wide(i bigint, w int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT 'v' || i || coalesce((SELECT string_agg(md5((i * 1000 + g)::text), '') FROM generate_series(1, w) g), '') $$;

-- An error that a block catches: none that says something is broken.
CREATE FUNCTION expected(state text, message text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF state LIKE 'XX%' OR state LIKE '58%' THEN RAISE EXCEPTION '%', message USING ERRCODE = state; END IF; END $$;
-- Do something at one of the rows of a statement; every third time it is undone.
CREATE FUNCTION during(i bigint, at bigint, statement text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
    IF i = at THEN
        BEGIN
            EXECUTE statement;
            IF i % 3 = 0 THEN RAISE EXCEPTION 'undone'; END IF;
        EXCEPTION WHEN OTHERS THEN PERFORM expected(SQLSTATE, SQLERRM); END;
    END IF;
    RETURN i; END $$;

CREATE FUNCTION digest(source text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE found text; BEGIN
    EXECUTE format($q$SELECT count(*) || ' ' || md5(coalesce(string_agg(t, chr(10) ORDER BY t COLLATE "C"), ''))
                      FROM (SELECT x::text AS t FROM %s) q$q$, source) INTO found;
    RETURN found; END $$;
-- How rows come out, source by source.
CREATE FUNCTION digests(sources text[]) RETURNS text[] LANGUAGE sql AS
    $$ SELECT array_agg(digest(s) ORDER BY n) FROM unnest(sources) WITH ORDINALITY u(s, n) $$;
CREATE FUNCTION set_plans(seqscan text, scan text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config('enable_seqscan', seqscan, true), set_config('firn.enable_scan', scan, true); END $$;

-- Tables that may be firn's: how their rows are asked for, and come out, each way. What is wrong by itself is an error.
CREATE FUNCTION look(names text[], thorough bool) RETURNS TABLE (what text, way text, source text, got text) LANGUAGE plpgsql AS $$
DECLARE
    i record; kind "char"; method name; t text; rows bigint;
BEGIN
    FOREACH what IN ARRAY names LOOP
        SELECT relkind, amname INTO kind, method FROM pg_class c LEFT JOIN pg_am a ON a.oid = relam WHERE c.oid = to_regclass(what);
        way := 'as it is'; source := what || ' x'; got := digest(source); RETURN NEXT;
        EXECUTE format('SELECT count(*) FROM %I', what) INTO rows;
        ASSERT rows = split_part(got, ' ', 1)::bigint, format('%s: %s rows, %s counted', what, got, rows);
        IF thorough THEN
            PERFORM set_plans('on', 'off');
            way := 'row by row'; got := digest(source); RETURN NEXT;
        END IF;
        PERFORM set_plans('off', 'off');
        -- By each index at least as many rows as it has entries for.
        FOR i IN SELECT indexrelid AS oid, pg_get_indexdef(indexrelid, 1, true) AS leading, pg_get_expr(indpred, indrelid) AS predicate, amname AS method
                 FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
                 WHERE indrelid = what::regclass AND indisvalid AND NOT indcheckxmin AND c.relkind = 'i' ORDER BY 1
        LOOP
            way := i.oid::regclass;
            source := format('%s x WHERE (%s) %s', what, i.leading, CASE WHEN i.method = 'hash' THEN '= ' || rows % 17
                             WHEN i.leading = 'v' THEN '>= ''''' ELSE '>= -1' END) || coalesce(' AND ' || i.predicate, '');
            got := digest(source); RETURN NEXT;
            IF thorough AND i.method = 'btree' THEN
                PERFORM bt_index_check(i.oid, true);
            END IF;
        END LOOP;
        PERFORM set_plans('on', 'on');
        CONTINUE WHEN NOT thorough OR kind = 'p';
        PERFORM bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid = (SELECT reltoastrelid FROM pg_class WHERE oid = what::regclass);
        CONTINUE WHEN method <> 'firn';
        SELECT string_agg(format('%s %s: %s', severity, object, problem), '; ') INTO t FROM firn.check(what::regclass);
        ASSERT t IS NULL, format('firn.check(%L): %s', what, t);
    END LOOP;
END $$;
