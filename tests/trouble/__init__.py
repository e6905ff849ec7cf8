"""Fit for trouble: progress, cancel, full disks, privileges."""
import os

from harness.cluster import Cluster
from harness.store import KEY, SECRET, Gateway, Proxy
from trouble import (cancel, cold_pages, damage, extensions, full, ids, keys, privileges, progress, stores, vanish,
                     waits)

# Cases with a cluster of their own or the common one, and those that also need a store that can be hampered.
CASES = {
    "several moves in one statement": progress.one_statement,
    "progress": progress.progress,
    "progress without preloading": progress.without_preload,
    "statement_timeout": cancel.timeouts,
    "no thread left": cancel.no_thread_left,
    "privileges of functions": privileges.functions,
    "privileges on partitions": privileges.partitions,
    "rights of foreign code": privileges.foreign_code,
    "row-level security": privileges.policies,
    "stores in folders": privileges.folders,
    "row store without blocks": full.no_blocks,
    "rows that no memory takes": full.no_memory,
    "numbers of many digits": full.many_digits,
    "intents of dead offloads": damage.intents,
    "check of every stripe": damage.every_stripe,
    "repair": damage.repairs,
    "damaged tombstones": damage.damaged_tombstone,
    "repair beside reindex": damage.repair_beside_reindex,
    "check of index entries": damage.index_entries,
    "check of broken chains": damage.broken_chains,
    "store not mounted": stores.unmounted,
    "store moved": stores.moved,
    "store known to another build": stores.another_build,
    "copies of a database and their stores": stores.copies,
    "unneeded objects": stores.unneeded_of_running,
    "tables that vanish while waited for": vanish.waits,
    "extension dropped": vanish.extension,
    "tables that come and go": vanish.tables,
    "check of damaged pages": damage.damaged_pages,
    "vacuum of damaged directory rows": damage.vacuum_of_damage,
    "damaged key of a directory row": damage.damaged_key,
    "vacuum beside damaged directory rows": damage.vacuum_pays_once,
    "keys of directory rows on their pages": keys.directory_rows,
    "keys of tombstones on their pages": keys.tombstones,
    "keys of notes on their pages": keys.others,
    "keys that a new index would go by": keys.rebuilt,
    "values like directory rows": keys.forged,
    "exclusion beside a load": waits.exclusion,
    "expressions beside a load": waits.expressions,
    "expressions and loads": waits.loads,
    "keys beside replacements": waits.beside_replacements,
    "deferred triggers of moved rows": waits.deferred,
    "samples of stripes": waits.samples,
    "damaged objects put back": cold_pages.put_back,
    "reads of cold rows": cold_pages.reads_keep_nothing,
    "scans by keys": extensions.keys,
    "builds of some blocks": extensions.ranges,
    "few ids left": lambda _: ids.few_left(),
    "ids come round": lambda _: ids.around(),
    "single user": lambda _: ids.single_user(),
}
# Those that mount a small file system.
DISK_CASES = {
    "full disk of a table": full.table_space,
    "full disk of a server": full.whole_server,
    "full disk of the cache": full.cache,
    "full disk of a store": full.store,
}
STORE_CASES = {
    "progress of offload and load": progress.progress_of_moves,
    "cancel at a silent store": cancel.silent_store,
    "others at a silent store": cancel.others_wait_not,
    "secrets": privileges.secrets,
    "cold pages at once": cold_pages.at_once,
    "cold pages in memory": cold_pages.in_memory,
}


def run(tally, pattern):
    # What is deleted or new is there for other sessions as long as any of their snapshots: autovacuum has some when it likes.
    cluster = Cluster("trouble", ["autovacuum=off"]).create(checksums=False)
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        small = any(pattern in name for name in DISK_CASES) and full.possible()
        for name, body in (CASES | DISK_CASES if small else CASES).items():
            if pattern in name:
                tally.case(f"trouble {name}", lambda: body(cluster))
        if any(pattern in name for name in STORE_CASES):
            with_store(tally, cluster, pattern)
        tally.case("trouble server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def with_store(tally, cluster, pattern):
    with Gateway(os.path.join(cluster.root, "s3")) as gateway:
        proxy = Proxy(gateway.port)
        with cluster.connect() as c:
            c.execute("CREATE SERVER s3 FOREIGN DATA WRAPPER firn OPTIONS (url 's3://bucket/firn', "
                      f"endpoint 'http://127.0.0.1:{proxy.port}', region 'us-east-1')")
            c.execute(f"CREATE USER MAPPING FOR postgres SERVER s3 OPTIONS (access_key_id '{KEY}', "
                      f"secret_access_key '{SECRET}')")
        for name, body in STORE_CASES.items():
            if pattern in name:
                tally.case(f"trouble {name}", lambda: body(cluster, proxy))
                proxy.rate = None
        proxy.close()


def quiet(cluster):
    assert not cluster.alarms("."), cluster.alarms(".")
