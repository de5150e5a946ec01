//! Part of row 25: the server refuses the drain's writes. A user's trigger refuses single events, or the
//! server has no memory or disk space for a while. A refused write costs other events nothing, and no event
//! more than two attempts.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};
use crate::journal::Record;
use test_support::skip::skipped;

/// Only leases of ended runs lapse, and no run ends by its budget, because a handler that is interrupted
/// there is charged.
fn patient(world: &World) -> Worker {
    Worker {
        budget_ms: 60_000,
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: 8,
        batch: 1000,
        ..worker(world)
    }
}

/// The same, but a failed run ends its process, so that its events become free at once.
fn run_by_run(world: &World) -> Worker {
    Worker {
        once: true,
        ..patient(world)
    }
}

async fn publish(world: &World, count: usize, work: impl Fn(usize) -> Work) {
    let group = |number: usize| {
        number
            .is_multiple_of(3)
            .then(|| format!("g{}", number % 10))
    };
    let event = |number| (group(number), Torture::Plain(work(number)));
    let events = (0..count).map(event).collect();
    world.publish("all", events, 5).await;
}

pub async fn a_trigger_that_refuses_an_event_costs_no_other_event_an_attempt(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    const ALL: usize = 200;
    const REFUSED: i64 = 4;
    const BEHIND: i64 = 5;
    let world = World::start("refusing_trigger", seed, &[]).await;
    let mut further: Vec<Violation> = absurd_retention(&world).await.into_iter().collect();
    // A sequence counts even if its transaction rolls back.
    let trigger = "CREATE SEQUENCE torture.refusals;
                   CREATE FUNCTION torture.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                       IF NEW.payload->>'key' = 'refused head' THEN PERFORM nextval('torture.refusals'); END IF;
                       IF NEW.payload->>'key' LIKE 'refused%' THEN RAISE EXCEPTION 'not this one'; END IF;
                       RETURN NEW;
                   END $$;
                   CREATE TRIGGER refuse BEFORE INSERT ON tidegate.event_log FOR EACH ROW EXECUTE FUNCTION torture.refuse()";
    world.client().await.batch_execute(trigger).await.unwrap();
    // The refused events have no group, because later events of the group would have to wait.
    publish(&world, ALL, |number| Work {
        silent: number.is_multiple_of(2),
        ..Work::new(if number % 60 == 1 {
            format!("refused {number}")
        } else {
            number.to_string()
        })
    })
    .await;
    publish_behind(&world, BEHIND).await;
    let mut fleet = Fleet::default();
    fleet.start_worker(&world, patient(&world));
    // Events that were running behind the first event of the group may have ended.
    let left = "SELECT count(*) FROM tidegate.event_queue WHERE group_key IS DISTINCT FROM 'shut'";
    let refusals = "SELECT least(8, last_value) FROM torture.refusals";
    if !world.comes_to(left, REFUSED).await || !world.comes_to(refusals, 8).await {
        let text = "others wait for what a trigger refuses".to_owned();
        further.push(Violation::new("I10", text));
    }
    let heal = "DROP TRIGGER refuse ON tidegate.event_log";
    world.client().await.batch_execute(heal).await.unwrap();
    world.drain(&mut fleet).await;
    further.extend(harmed(&world.history(true).await, 1));
    world.judge(further).await
}

/// Publishes a group whose first event is refused. The others are slow enough to be still running when this
/// is known.
async fn publish_behind(world: &World, count: i64) {
    let behind = (0..count).map(|number| Work {
        takes_ms: vec![100],
        ..Work::new(format!("behind {number}"))
    });
    let all = std::iter::once(Work::new("refused head")).chain(behind);
    let all = all.map(|work| (Some("shut".to_owned()), Torture::Plain(work)));
    world.publish("behind", all.collect(), 5).await;
}

/// A time that cannot be added to a clock is refused when it is set.
async fn absurd_retention(world: &World) -> Option<Violation> {
    let sql = "UPDATE tidegate.event_kind SET retention_completed = '300000 years'";
    let refused = world.client().await.batch_execute(sql).await.err();
    let code = refused.and_then(|error| error.code().map(|code| code.code().to_owned()));
    let text = format!("an absurd retention is answered with {code:?}");
    (code.as_deref() != Some("23514")).then(|| Violation::new("I10", text))
}

pub async fn a_server_without_memory_for_a_while_costs_no_event_more_than_two_attempts(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let world = World::start("no_memory", seed, &[]).await;
    // A sequence counts even if its transaction rolls back.
    let trigger = format!(
        "CREATE SEQUENCE torture.refusals;
         CREATE FUNCTION torture.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('torture.refusals') < {} THEN
                 RAISE EXCEPTION 'out of memory' USING ERRCODE = 'out_of_memory';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON tidegate.event_log FOR EACH ROW EXECUTE FUNCTION torture.refuse()",
        size.pick(400, 2000)
    );
    world.client().await.batch_execute(&trigger).await.unwrap();
    publish(&world, 200, |number| Work {
        silent: number.is_multiple_of(2),
        ..Work::new(number.to_string())
    })
    .await;
    let template = run_by_run(&world);
    let mut fleet = Fleet::default();
    fleet.start_worker(&world, template.clone());
    fleet.tend_to_the_end(&world, &template).await;
    fleet.finish(&world);
    let mut further = harmed(&world.history(true).await, 3);
    let healed = world
        .number("SELECT last_value FROM torture.refusals")
        .await;
    if healed < size.pick(400, 2000) {
        further.push(Violation::new("memory", "nothing was refused".to_owned()));
    }
    world.judge(further).await
}

/// Returns events that did not complete or needed more than this many attempts (one more behind a refused
/// event of the same group), and leases that a run considered lost although it had removed nothing from them
/// with a refused event.
fn harmed(history: &History, most: u32) -> Vec<Violation> {
    let charges = history.charges.iter();
    let along = charges.filter(|charge| charge.error_attempt.is_none() && !charge.is_lapse());
    let lost = Figures::of(history)
        .lease_lost
        .saturating_sub(along.count() as u64);
    let lost = (lost > 0).then(|| Violation::new("report", format!("{lost} leases were lost")));
    let harm = history.rows.iter().filter(|row| {
        let is = |what| row.key.as_ref().is_some_and(|key| key.starts_with(what));
        let most = most + u32::from(is("behind"));
        row.status != "COMPLETED" || row.attempts > most && !is("refused")
    });
    harm.map(|row| {
        let (id, status, attempts) = (row.id, &row.status, row.attempts);
        let text = format!("event {id} is {status} after {attempts} attempts");
        Violation::new("I10", text)
    })
    .chain(lost)
    .collect()
}

/// A file system of its own with this size.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Returns `None` and prints the reason if mounting is not allowed.
    fn mount(owner: u32, size: &str) -> Option<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tidegate-disk-")
            .tempdir_in("/tmp")
            .unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let options = format!("size={size},uid={owner},mode=700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|done| done.status.success()) {
            return Some(Self { folder });
        }
        skipped(
            "disk",
            "nothing may be mounted here, so no disk is ever full",
        );
        None
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let grown = Command::new("mount")
            .args(["-o", &options])
            .arg(self.folder.path())
            .status();
        assert!(grown.unwrap().success(), "the file system is made larger");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The server may still have files open there.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.folder.path())
            .status();
    }
}

pub async fn a_disk_that_is_full_for_a_while_costs_no_event_more_than_two_attempts(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("full_disk", seed, &[]).await;
    let client = world.client().await;
    let data: String = client
        .query_one("SHOW data_directory", &[])
        .await
        .unwrap()
        .get(0);
    let owner = std::fs::metadata(Path::new(&data)).unwrap().uid();
    let Some(disk) = SmallDisk::mount(owner, "512k") else {
        world.forget();
        return Ok(Figures::default());
    };
    // Only the log is on this disk, so the full disk is where ends are written. Rows with this retention have
    // no partition.
    let long = "UPDATE tidegate.event_kind SET retention_completed = '3000 days', retention_failed = '3000 days'";
    client.batch_execute(long).await.unwrap();
    let path = disk.folder.path().display();
    let tablespace = format!("CREATE TABLESPACE small LOCATION '{path}'");
    client.batch_execute(&tablespace).await.unwrap();
    let moved = "ALTER TABLE tidegate.event_log_default SET TABLESPACE small";
    client.batch_execute(moved).await.unwrap();
    let ballast = ballast(&mut world.random);
    let count = size.pick(1_000, 4_000);
    publish(&world, count, |number| Work {
        silent: number.is_multiple_of(2),
        ballast: ballast.clone(),
        ..Work::new(number.to_string())
    })
    .await;
    let template = run_by_run(&world);
    let mut fleet = Fleet::default();
    fleet.start_worker(&world, template.clone());
    let further = fill_and_heal(&world, &mut fleet, &template, &disk).await;
    fleet.finish(&world);
    let mut all = harmed(&world.history(true).await, 3);
    all.extend(further);
    let judged = world.judge(all).await;
    drop(disk);
    judged
}

/// Data that hardly compresses, and is not moved to another table because of its length.
fn ballast(random: &mut fastrand::Rng) -> String {
    (0..1000).map(|_| random.alphanumeric()).collect()
}

/// Lets some runs meet the full disk before space is freed. The events that the first runs left run alone, so
/// few are refused in one run, and such a run does not fail.
async fn fill_and_heal(
    world: &World,
    fleet: &mut Fleet,
    template: &Worker,
    disk: &SmallDisk,
) -> Option<Violation> {
    let count = |is: fn(&Record) -> bool| {
        let journals = world.journals();
        let lines = journals.iter().flat_map(|journal| &journal.lines);
        lines.filter(|line| is(&line.record)).count()
    };
    let mut filled = true;
    let enough = || {
        let failed = count(|record| matches!(record, Record::Failed { .. }));
        let reported = count(|record| matches!(record, Record::Reported { .. }));
        failed > 0 && failed + reported > 3
    };
    while !enough() {
        fleet.tend(world, template).await;
        if world
            .number("SELECT count(*) FROM tidegate.event_queue")
            .await
            == 0
        {
            filled = false;
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    disk.grow("64m");
    fleet.tend_to_the_end(world, template).await;
    (!filled).then(|| Violation::new("disk", "it was never full".to_owned()))
}
