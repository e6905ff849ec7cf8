//! The planner against archives made up at random: whatever it plans, the schedule must keep every dependency, never
//! run conflicting steps at the same time, stay within the lock table, and do each entry once.

use firn_cli::archive::{Entry, Section, Toc};
use firn_cli::plan::build::{build, Input};
use firn_cli::plan::family::{IndexMode, Sizes};
use firn_cli::plan::locks::Lock;
use firn_cli::plan::render::{Refused, Renderer, Settings, Style};
use firn_cli::plan::schedule::{Batch, Limits, Outcome, Scheduler};
use firn_cli::plan::select::{select, Filter};
use firn_cli::plan::{Facts, Plan, Rules, Work};
use proptest::prelude::*;
use std::collections::HashMap;

struct Same(u64);

impl Sizes for Same {
    fn data_bytes(&self, _: usize) -> u64 {
        self.0
    }
}

/// An archive with partitioned tables, as pg_dump would write it.
#[derive(Default)]
struct Maker {
    toc: Toc,
    next: i32,
}

impl Maker {
    fn add(
        &mut self,
        desc: &str,
        tag: &str,
        section: Section,
        defn: &str,
        dependencies: &[i32],
    ) -> i32 {
        self.next += 1;
        let copy = format!("COPY s.{tag} (d) FROM stdin;\n");
        let data = desc == "TABLE DATA";
        let entry = Entry {
            dump_id: self.next,
            desc: desc.as_bytes(),
            tag: tag.as_bytes(),
            namespace: b"s",
            owner: b"o",
            section,
            defn: defn.as_bytes(),
            drop_stmt: if data { b"" } else { b"DROP x;" },
            copy_stmt: if data { copy.as_bytes() } else { b"" },
            has_data: data,
            dependencies,
            ..Entry::default()
        };
        self.toc.push(&entry).unwrap();
        self.next
    }

    /// A partitioned table with its parts; `odd`: partitions whose columns differ.
    fn root(
        &mut self,
        name: &str,
        partitions: usize,
        odd: usize,
        gap: usize,
        function: i32,
        dimension: i32,
    ) {
        use Section::{Data, PostData, PreData};
        let body = "    d date NOT NULL,\n    v text,\n    CONSTRAINT sane CHECK (s.f(v))";
        let table =
            |n: &str, body: &str, rest: &str| format!("CREATE TABLE s.{n} (\n{body}\n)\n{rest};\n");
        let root = self.add(
            "TABLE",
            name,
            PreData,
            &table(name, body, "PARTITION BY RANGE (d)"),
            &[function],
        );
        let key = |n: &str| {
            format!("ALTER TABLE ONLY s.{n}\n    ADD CONSTRAINT {n}_pkey PRIMARY KEY (d);\n")
        };
        let mut parts = Vec::new();
        for n in 0..partitions {
            let part = format!("{name}_{n:04}");
            let own = if n < odd { "    d date NOT NULL,\n    v text" } else { body };
            let id = self.add("TABLE", &part, PreData, &table(&part, own, ""), &[function]);
            // A gap in the ranges now and then.
            let (from, to) = (n * 10 + usize::from(gap > 0 && n % gap == 0), n * 10 + 10);
            let bound = format!("FOR VALUES FROM ('{from}') TO ('{to}')");
            let attach = format!("ALTER TABLE ONLY s.{name} ATTACH PARTITION s.{part} {bound};\n");
            self.add("TABLE ATTACH", &part, PreData, &attach, &[root, id]);
            self.add("TABLE DATA", &part, Data, "", &[id]);
            parts.push((part, id));
        }
        let parent =
            self.add("CONSTRAINT", &format!("{name} {name}_pkey"), PostData, &key(name), &[root]);
        for (part, id) in &parts {
            let own = self.add(
                "CONSTRAINT",
                &format!("{part} {part}_pkey"),
                PostData,
                &key(part),
                &[*id],
            );
            let attach = format!("ALTER INDEX s.{name}_pkey ATTACH PARTITION s.{part}_pkey;\n");
            self.add("INDEX ATTACH", &format!("{part}_pkey"), PostData, &attach, &[parent, own]);
        }
        let fk = format!(
            "ALTER TABLE s.{name}\n    ADD CONSTRAINT fk FOREIGN KEY (v) REFERENCES s.dim(v);\n"
        );
        self.add("FK CONSTRAINT", &format!("{name} fk"), PostData, &fk, &[root, dimension]);
        self.add(
            "TRIGGER",
            &format!("{name} t"),
            PostData,
            "CREATE TRIGGER t;\n",
            &[root, function],
        );
        for (part, id) in parts.iter().step_by(3) {
            let grant = format!("GRANT SELECT ON TABLE s.{part} TO r;\n");
            self.add("ACL", &format!("TABLE {part}"), Section::None, &grant, &[*id]);
        }
    }
}

fn archive(roots: &[(usize, usize, usize)]) -> Toc {
    let mut maker = Maker::default();
    let path = "SELECT pg_catalog.set_config('search_path', '', false);\n";
    maker.add("SEARCHPATH", "SEARCHPATH", Section::PreData, path, &[]);
    let function = maker.add("FUNCTION", "f", Section::PreData, "CREATE FUNCTION s.f();\n", &[]);
    let dim = "CREATE TABLE s.dim (\n    v text\n);\n";
    let dimension = maker.add("TABLE", "dim", Section::PreData, dim, &[]);
    for (n, (partitions, odd, gap)) in roots.iter().enumerate() {
        maker.root(&format!("r{n}"), *partitions, *odd, *gap, function, dimension);
    }
    // Waits for all rows.
    let index = "CREATE INDEX dim_f ON s.dim USING btree (s.f(v));\n";
    maker.add("INDEX", "dim_f", Section::PostData, index, &[dimension, function]);
    let view = "CREATE MATERIALIZED VIEW s.m AS\n SELECT 1 AS v\n  WITH NO DATA;\n";
    let view = maker.add("MATERIALIZED VIEW", "m", Section::PreData, view, &[dimension]);
    let refresh = "REFRESH MATERIALIZED VIEW s.m;\n";
    maker.add("MATERIALIZED VIEW DATA", "m", Section::PostData, refresh, &[view]);
    let privileges = "ALTER DEFAULT PRIVILEGES FOR ROLE o GRANT SELECT ON TABLES TO r;\n";
    maker.add("DEFAULT ACL", "DEFAULT PRIVILEGES FOR TABLES", Section::None, privileges, &[]);
    let trigger = "CREATE EVENT TRIGGER e ON ddl_command_end\n   EXECUTE FUNCTION s.f();\n";
    maker.add("EVENT TRIGGER", "e", Section::PostData, trigger, &[function]);
    maker.toc
}

/// Run the schedule on `jobs` workers that end in odd order, checking all the while; returns how often each entry was
/// done.
fn run(toc: &Toc, plan: &Plan, jobs: usize, slots: u64, mut seed: u64) -> HashMap<u32, usize> {
    let mut scheduler = Scheduler::new(plan, jobs, slots, &[], Limits::default());
    let mut running: Vec<Batch> = Vec::new();
    let mut position = HashMap::new();
    let mut done = HashMap::new();
    while !scheduler.finished() {
        while running.len() < jobs {
            let Some(batch) = scheduler.next_batch() else { break };
            for other in &running {
                for (a, b) in
                    batch.steps.iter().flat_map(|a| other.steps.iter().map(move |b| (*a, *b)))
                {
                    for lock in plan.locks(a as usize) {
                        let clash = plan
                            .locks(b as usize)
                            .iter()
                            .find(|l| l.resource == lock.resource && l.mode.conflicts(lock.mode));
                        assert!(
                            clash.is_none(),
                            "steps {a} and {b} run at once: {lock:?} {clash:?}"
                        );
                    }
                }
            }
            let staged = |s: &&u32| {
                let work = &plan.steps[**s as usize].work;
                matches!(work, Work::Group(g) if plan.groups[*g as usize].staged)
            };
            assert!(batch.steps.iter().filter(staged).count() < 2, "one waits holding the other's");
            running.push(batch);
            let held: u64 = running
                .iter()
                .flat_map(|b| &b.steps)
                .map(|s| u64::from(plan.steps[*s as usize].lock_count))
                .sum();
            assert!(running.len() == 1 || held <= slots, "{held} locks of {slots}");
        }
        assert!(!running.is_empty(), "nothing runs, {} left", scheduler.left());
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let batch = running.swap_remove((seed >> 33) as usize % running.len());
        for &step in &batch.steps {
            position.insert(step, position.len());
            for entry in plan.entries(step as usize) {
                *done.entry(*entry).or_default() += 1;
            }
        }
        scheduler.end_batch(&batch, |_| Outcome::Done);
    }
    // Every dependency of the archive was done before.
    let mut first = HashMap::new();
    for (step, at) in &position {
        for entry in plan.entries(*step as usize) {
            let known = first.entry(*entry).or_insert(*at);
            *known = (*known).min(*at);
        }
    }
    for (place, entry) in toc.entries().enumerate() {
        for d in entry.dependencies {
            let before = first[&(toc.place(*d).unwrap() as u32)];
            // But for partitions' indexes that their parent's takes up when they are there.
            let other = toc.entry(toc.place(*d).unwrap());
            if entry.desc == b"CONSTRAINT" && other.desc == b"CONSTRAINT" {
                continue;
            }
            assert!(before <= first[&(place as u32)], "{}", String::from_utf8_lossy(entry.tag));
        }
    }
    done
}

/// What comes last waits for each earlier step over milestones alone, as those are never recorded: a step between the two may be, without what it
/// has waited for, after an error.
fn what_comes_last_waits_for_all(toc: &Toc, plan: &Plan) {
    let pass = |step: usize| {
        let last = plan.entries(step).last().map(|place| toc.entry(*place as usize).desc);
        match last {
            Some(b"ACL" | b"DEFAULT ACL") => 1,
            Some(b"EVENT TRIGGER" | b"MATERIALIZED VIEW DATA") => 2,
            _ => 0,
        }
    };
    let is_real = |step: usize| !matches!(plan.steps[step].work, Work::Milestone);
    let mut before = vec![Vec::new(); plan.steps.len()];
    for step in 0..plan.steps.len() {
        plan.followers(step).iter().for_each(|next| before[*next as usize].push(step));
    }
    for wanted in 1..=2 {
        let step = (0..plan.steps.len()).find(|step| pass(*step) == wanted && is_real(*step));
        let mut found = std::collections::HashSet::new();
        let mut stack = vec![step.unwrap()];
        while let Some(step) = stack.pop() {
            stack.extend(before[step].iter().filter(|s| found.insert(**s) && !is_real(**s)));
        }
        let missed: Vec<_> = (0..plan.steps.len())
            .filter(|s| is_real(*s) && pass(*s) < wanted && !found.contains(s))
            .map(|s| &plan.steps[s].work)
            .collect();
        assert!(missed.is_empty(), "pass {wanted}: {missed:?}");
    }
}

fn planned(toc: &Toc, facts: &Facts, rules: Rules, bytes: u64) -> Plan {
    let selection = select(toc, &Filter::default());
    let sizes = Same(bytes);
    build(&Input { toc, selection: &selection, facts, rules, sizes: &sizes }).unwrap()
}

fn facts(superuser: bool, lock_slots: u64) -> Facts {
    Facts {
        server_version: 150_000,
        superuser,
        no_staging: None,
        lock_slots,
        jobs: 2,
        reloads: Vec::new(),
        crossing: Default::default(),
        generated: Default::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn schedules_are_sound(
        roots in prop::collection::vec((1usize..400, 0usize..3, 0usize..50), 1..4),
        jobs in 1usize..9,
        superuser: bool,
        slots in prop::sample::select(vec![500u64, 7_808, 250_000]),
        bytes in prop::sample::select(vec![0u64, 1 << 24]),
        off in prop::collection::vec(0usize..Rules::NAMES.len(), 0..4),
        seed: u64,
    ) {
        let toc = archive(&roots);
        let mut rules = Rules::all(true);
        for n in off {
            *Rules::NAMES[n].1(&mut rules) = false;
        }
        let plan = planned(&toc, &facts(superuser, slots), rules, bytes);
        what_comes_last_waits_for_all(&toc, &plan);
        let done = run(&toc, &plan, jobs, slots, seed);
        // The entry of the search path is for sessions.
        prop_assert_eq!(done.len(), toc.len() - 1);
        // Only CHECK constraints, kept apart from their parent's entry, and rows in parts are done in several steps.
        for (entry, times) in done {
            let found = toc.entry(entry as usize);
            let several = found.desc == b"TABLE DATA" || found.tag.len() == 2;
            prop_assert!(times == 1 || several, "{} times {:?}", times, String::from_utf8_lossy(found.tag));
        }
    }
}

#[test]
fn many_partitions_are_staged_and_their_indexes_made_in_bulk() {
    let toc = archive(&[(600, 0, 0)]);
    let plan = planned(&toc, &facts(true, 250_000), Rules::all(true), 0);
    let staged: usize = plan.groups.iter().filter(|g| g.staged).map(|g| g.members.len()).sum();
    assert_eq!(staged, 600);
    assert_eq!(plan.families[0].index_mode, IndexMode::Bulk);
    assert!(plan.families[0].late_checks);
    // A server as it comes has not the locks for one statement on all partitions.
    let plan = planned(&toc, &facts(true, 6_400), Rules::all(true), 0);
    assert_eq!(plan.families[0].index_mode, IndexMode::WithTable);
    // Rows: indexes are built afterwards, each by itself, and attached together.
    let plan = planned(&toc, &facts(true, 250_000), Rules::all(true), 1 << 24);
    assert_eq!(plan.families[0].index_mode, IndexMode::Own);
    assert!(plan.steps.iter().any(|s| s.work == Work::BulkAttach));
    // No superuser: catalogs are left alone.
    let plan = planned(&toc, &facts(false, 250_000), Rules::all(true), 0);
    assert!(plan.groups.iter().all(|g| !g.staged));
}

#[test]
fn partitions_that_differ_are_made_as_the_archive_says() {
    let toc = archive(&[(300, 2, 0)]);
    let plan = planned(&toc, &facts(true, 250_000), Rules::all(true), 0);
    assert_eq!(plan.families[0].members.len(), 298);
    // What goes down from the parent would reach the other two, which have or lack things of their own.
    assert_eq!(plan.families[0].index_mode, IndexMode::Own);
    assert!(!plan.families[0].late_checks);
}

#[test]
fn without_rules_all_statements_are_the_archives() {
    let toc = archive(&[(50, 0, 0)]);
    let plan = planned(&toc, &facts(true, 250_000), Rules::all(false), 0);
    let renderer = Renderer {
        toc: &toc,
        plan: &plan,
        style: Style { no_owner: true, ..Style::default() },
        role: None,
        refused: Refused::default(),
    };
    for (number, step) in plan.steps.iter().enumerate() {
        if step.work == Work::Entries {
            let sql = renderer.step(number as u32, &mut Settings::default());
            let expected: Vec<u8> = plan
                .entries(number)
                .iter()
                .flat_map(|p| toc.entry(*p as usize).defn.to_vec())
                .collect();
            assert_eq!(sql, expected);
        } else {
            assert!(matches!(step.work, Work::Data(0, 1) | Work::Milestone), "{:?}", step.work);
        }
    }
}

/// Until rows of a partition are committed their parent is locked: what changes the parent comes before, or at another time.
#[test]
fn defaults_of_parents_do_not_wait_for_rows() {
    let mut maker = Maker::default();
    let path = "SELECT pg_catalog.set_config('search_path', '', false);\n";
    maker.add("SEARCHPATH", "SEARCHPATH", Section::PreData, path, &[]);
    maker.root("r", 40, 3, 0, 0, 0);
    let root = maker.toc.entries().find(|e| e.tag == b"r").unwrap().dump_id;
    let statement = "ALTER TABLE ONLY s.r ALTER COLUMN v SET DEFAULT 'x';\n";
    let default = maker.add("DEFAULT", "r v", Section::PreData, statement, &[root]);
    let policy = "CREATE POLICY q ON s.r;\n";
    let policy = maker.add("POLICY", "r q", Section::PreData, policy, &[root]);
    let toc = maker.toc;
    for rules in [Rules::all(true), Rules::all(false)] {
        let plan = planned(&toc, &facts(true, 6400), rules, 100);
        let step_of = |id: i32| {
            let place = toc.place(id).unwrap() as u32;
            (0..plan.steps.len()).find(|s| plan.entries(*s).contains(&place)).unwrap()
        };
        let waits_for = |after: usize, before: usize| {
            let mut seen = vec![before as u32];
            let mut at = 0;
            while at < seen.len() {
                let more = plan.followers(seen[at] as usize).iter();
                let more: Vec<u32> = more.filter(|f| !seen.contains(f)).copied().collect();
                seen.extend(more);
                at += 1;
            }
            seen.contains(&(after as u32))
        };
        let of_policy = plan.locks(step_of(policy));
        for data in toc.entries().filter(|e| e.desc == b"TABLE DATA") {
            let data = step_of(data.dump_id);
            assert!(waits_for(data, step_of(default)));
            let conflict = |l: &&_| of_policy.iter().any(|o| conflicts(o, l));
            assert!(plan.locks(data).iter().any(|l| conflict(&l)));
        }
    }
}

fn conflicts(a: &Lock, b: &Lock) -> bool {
    a.resource == b.resource && a.mode.conflicts(b.mode)
}

#[test]
fn circles_are_errors() {
    let mut maker = Maker::default();
    maker.add("VIEW", "a", Section::PreData, "CREATE VIEW s.a;\n", &[2]);
    maker.add("VIEW", "b", Section::PreData, "CREATE VIEW s.b;\n", &[1]);
    let toc = maker.toc;
    let selection = select(&toc, &Filter::default());
    let facts = facts(true, 6400);
    let input = Input {
        toc: &toc,
        selection: &selection,
        facts: &facts,
        rules: Rules::all(true),
        sizes: &Same(0),
    };
    let error = build(&input).err().unwrap();
    assert!(error.message.contains("circle"), "{error}");
}

#[test]
fn what_fails_holds_nothing_up() {
    let toc = archive(&[(20, 0, 0)]);
    let plan = planned(&toc, &facts(true, 250_000), Rules::all(false), 0);
    let mut scheduler = Scheduler::new(&plan, 1, 250_000, &[], Limits::default());
    let mut seen = std::collections::HashSet::new();
    let mut again = true;
    while let Some(batch) = scheduler.next_batch() {
        // The first step of each batch fails, once it is to be tried again, the rest of some batches is not run.
        let retry = std::mem::take(&mut again);
        scheduler.end_batch(&batch, |step| match batch.steps.iter().position(|s| *s == step) {
            Some(0) if retry => Outcome::Again,
            Some(0) => Outcome::Failed,
            Some(n) if n > batch.steps.len() / 2 => Outcome::NotRun,
            _ => Outcome::Done,
        });
        seen.extend(batch.steps);
    }
    assert!(scheduler.finished(), "{} left", scheduler.left());
    let work = plan.steps.iter().filter(|s| s.work != Work::Milestone).count();
    assert_eq!(seen.len(), work);
}

/// Rows in several parts that something waits for which changes meanings, and stands before them.
#[test]
fn parts_of_rows_that_are_needed_early() {
    let mut maker = Maker::default();
    let path = "SELECT pg_catalog.set_config('search_path', '', false);\n";
    maker.add("SEARCHPATH", "SEARCHPATH", Section::PreData, path, &[]);
    maker.add("CAST", "CAST (a AS b)", Section::PreData, "CREATE CAST (a AS b);\n", &[4]);
    let table =
        maker.add("TABLE", "t", Section::PreData, "CREATE TABLE s.t (\n    d date\n);\n", &[]);
    assert_eq!(maker.add("TABLE DATA", "t", Section::Data, "", &[table]), 4);
    let facts = Facts { jobs: 4, ..facts(true, 6400) };
    let plan = planned(&maker.toc, &facts, Rules::all(true), 1 << 30);
    assert!(plan.steps.iter().any(|s| matches!(s.work, Work::Data(_, 2..))));
    run(&maker.toc, &plan, 2, 6400, 1);
}

/// Rows alone, of three tables that were there: the generated columns of the second may look at other tables.
#[test]
fn generated_columns_that_were_there() {
    let mut maker = Maker::default();
    let path = "SELECT pg_catalog.set_config('search_path', '', false);\n";
    maker.add("SEARCHPATH", "SEARCHPATH", Section::PreData, path, &[]);
    for name in ["a", "b", "c"] {
        maker.add("TABLE DATA", name, Section::Data, "", &[]);
    }
    let waiting = |jobs, generated: &[u32]| -> Vec<u32> {
        let generated = generated.iter().map(|place| (*place, [20_000].into())).collect();
        let facts = Facts { jobs, generated, ..facts(true, 6400) };
        let plan = planned(&maker.toc, &facts, Rules::all(true), 1 << 20);
        let of_rows = |place: &u32| {
            let step = (0..plan.steps.len()).find(|step| plan.entries(*step) == [*place]);
            plan.waits[step.unwrap()] > 0
        };
        (1..4).filter(of_rows).collect()
    };
    assert!(waiting(1, &[]).is_empty() && waiting(2, &[]).is_empty());
    assert_eq!(waiting(2, &[2]), [2]);
    assert_eq!(waiting(1, &[2]), [2, 3]);
}
