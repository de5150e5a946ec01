//! The real database: does each step by the library, and shows its tables as the model has them.

use std::time::Duration;

use tidegate::admin::{Audit, ReplayRequest, RequeueRequest, UnblockAction, UnblockRequest, Verb};
use tidegate::lease::Fate;
use tidegate::outcome::Status;
use tidegate::queue::{self, Completion, ErrorEntry, Finalization, LeaseRequest, Retried};
use tidegate::retention::{CleanupHooks, CleanupOptions, cleanup};
use tidegate::{Event, Fault, NewEvent};
use tokio_postgres::{Client, Row as SqlRow, Statement};
use uuid::Uuid;

use super::model::{Batch, Ended, Granted, Hold, LEASE, Model, RENEWED, Row, Tables, Walk, Wanted};
use super::step::{End, From, Step};
use crate::operate::flags;
use crate::probe::{Probe, act, lease_request};
use crate::support::{self, TestDb};

pub struct World {
    db: TestDb,
    client: Client,
    /// What reads the queue, the leases, the log, the audit and what is out of order: prepared, for they are
    /// asked after each step.
    reads: [Statement; 5],
}

/// Both said the same.
fn same<T: PartialEq + std::fmt::Debug>(expected: &T, found: &T) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!(
        "the model answers {expected:?}, the database {found:?}"
    ))
}

fn hours(count: i64) -> Duration {
    Duration::from_hours(count.unsigned_abs())
}

/// The workers' names.
fn name(worker: usize) -> Uuid {
    Uuid::from_u128(worker as u128 + 1)
}

fn worker(name: Uuid) -> usize {
    usize::try_from(name.as_u128()).unwrap() - 1
}

fn sorted(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}

fn in_hours(argument: &str, hours: i64) -> String {
    format!(", {argument} => clock_timestamp() + interval '{hours} hours'")
}

fn group_name(group: u8) -> String {
    format!("group {group}")
}

impl World {
    /// This database of the probe's, changed by this SQL.
    pub async fn new(db: TestDb, sql: &str) -> Self {
        let client = db.client().await;
        // What is read after each step is expected to be much and is little: it would be compiled each time.
        let known = "SET jit = off; CREATE TABLE public.known AS SELECT 0::bigint AS audit;
            CREATE TABLE public.ever_ended (id bigint PRIMARY KEY, kind text, status text);
            CREATE FUNCTION public.ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO public.ever_ended VALUES (NEW.id, NEW.kind, NEW.status) ON CONFLICT DO NOTHING;
                RETURN NULL;
            END $$;
            CREATE TRIGGER ends AFTER INSERT ON tidegate.event_log FOR EACH ROW EXECUTE FUNCTION public.ends()";
        client.batch_execute(known).await.unwrap();
        client.batch_execute(sql).await.unwrap();
        let mut prepared = Vec::new();
        for read in reads() {
            prepared.push(client.prepare(&read).await.unwrap());
        }
        Self {
            db,
            client,
            reads: prepared.try_into().unwrap(),
        }
    }

    /// Empties the tables. The audit cannot be emptied; what is there already is not shown.
    pub async fn reset(&self) {
        let sql = "DELETE FROM tidegate.lease; DELETE FROM tidegate.event_queue; DELETE FROM tidegate.event_log;
                   DELETE FROM tidegate.minute_stats; DELETE FROM public.ever_ended;
                   UPDATE public.known SET audit = (SELECT coalesce(max(id), 0) FROM tidegate.audit)";
        self.client.batch_execute(sql).await.unwrap();
    }

    pub async fn apply(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        match *step {
            Step::Publish { .. } => self.publish(model, step).await,
            Step::Lease { .. } => self.lease(model, step).await,
            Step::Promote => {
                let found = queue::promote(&self.client, 1000).await.unwrap();
                same(&model.promote(), &found)
            }
            Step::Finalize {
                pick,
                end,
                follow_up,
            } => match model.pick_lease(pick) {
                Some(granted) => self.finalize(model, granted, end, follow_up).await,
                None => Ok(()),
            },
            Step::Complete { pick, .. }
            | Step::Retry { pick, .. }
            | Step::HandBack { pick }
            | Step::Renew { pick } => match model.pick_lease(pick) {
                Some(granted) => self.write(model, granted, step).await,
                None => Ok(()),
            },
            Step::Sweep { worker, says_held } => self.sweep(model, worker, says_held).await,
            Step::Requeue { .. }
            | Step::Cancel { .. }
            | Step::Skip { .. }
            | Step::CancelOne { .. }
            | Step::Reschedule { .. } => {
                self.operate(model, step).await?;
                // The model's events leave their leases at once.
                let apply = "SELECT tidegate.apply_cuts()";
                self.client.query_one(apply, &[]).await.unwrap();
                Ok(())
            }
            Step::Replay { pick, renews } => self.replay(model, pick, renews).await,
            Step::End => self.end(model).await,
            Step::Cleanup => self.clean(model).await,
            Step::Pass { hours } => {
                model.pass(hours);
                self.pass(hours).await;
                Ok(())
            }
        }
    }

    async fn publish(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        let Step::Publish {
            kind,
            group,
            dedup,
            delay,
            expires_in,
            max_attempts,
            replaces,
        } = *step
        else {
            return Ok(());
        };
        let event = match kind {
            0 => act("x"),
            kind => NewEvent::raw(Probe::KINDS[kind], None),
        };
        let mut event = event.max_attempts(max_attempts).delay(hours(delay));
        let mut row = Row {
            kind,
            available: delay,
            delayed: delay > 0,
            deadline: expires_in,
            ..Row::new(0, i32::from(max_attempts))
        };
        if let Some(group) = group.map(group_name) {
            event = event.group(group.clone());
            row.group = Some(group);
        }
        if let Some(key) = dedup.map(|key| format!("key {key} of {kind}")) {
            event = event.dedup(key.clone());
            row.dedup = Some(key);
        }
        if let Some(time) = expires_in {
            event = event.start_within(hours(time));
        }
        if replaces {
            event = event.replace();
        }
        let published = queue::publish(&self.client, &event).await;
        if let Some(twin) = model.twin(row.dedup.as_ref()) {
            let found = published.map(|new| (new.id, new.created, new.replaced));
            let expected = model.publish_again(twin, &row, replaces);
            let expected = expected.map(|replaced| (twin, false, replaced));
            return same(&expected, &found.ok());
        }
        let published = published.unwrap();
        same(&true, &published.created)?;
        row.id = published.id;
        model.insert(row)
    }

    async fn lease(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        let Step::Lease {
            worker,
            limit,
            window,
            from,
            says_held,
            kinds,
        } = *step
        else {
            return Ok(());
        };
        begin(model, worker, from);
        let token = model.next_token();
        let held = if says_held {
            model.tokens[worker].clone()
        } else {
            Vec::new()
        };
        let walk = model.walks[worker].clone();
        let request = LeaseRequest {
            token,
            worker: name(worker),
            held: &held,
            over: &[],
            timeout: hours(LEASE),
            kinds: &Probe::KINDS[..kinds],
            limit,
            first_window: window,
            passed_by: &walk.blocked,
            probe: None,
            walk: walk.at,
            ..lease_request()
        };
        let batch = queue::lease(&self.client, &request).await.unwrap();
        let expected = model.lease(Wanted {
            worker,
            token,
            limit: limit as usize,
            window: window as usize,
            says_held,
            kinds,
        });
        let walk = &mut model.walks[worker];
        walk.at = batch.walk;
        walk.blocked.extend(batch.blocked.iter().cloned());
        same(&expected, &brought(batch))
    }

    async fn finalize(
        &self,
        model: &mut Model,
        granted: Granted,
        end: End,
        follow_up: bool,
    ) -> Result<(), String> {
        let error =
            |code: &'static str| vec![ErrorEntry::new(None, &Fault::new(code, "because"), 1)];
        let (status, errors) = match end {
            End::Completed => (Status::Completed, Vec::new()),
            End::CompletedWithErrors => (Status::CompletedWithErrors, error("odd")),
            End::Failed => (Status::Failed, error("given_up")),
        };
        let follow_ups: Vec<NewEvent> = follow_up.then(|| act("next")).into_iter().collect();
        let finalization = Finalization {
            errors,
            follow_ups,
            ran: granted.runs,
            ..Finalization::new(granted.lease, status)
        };
        let flushed = support::finalize(&self.client, &[finalization])
            .await
            .unwrap();
        let ended = model.finalize(granted, end);
        same(&ended, &!flushed.ended.is_empty())?;
        same(&u64::from(ended && follow_up), &flushed.published)?;
        if ended && follow_up {
            let parent = granted.lease.id;
            let newest = "SELECT max(id) FROM tidegate.event_queue WHERE parent_id = $1";
            let id = self.client.query_one(newest, &[&parent]).await.unwrap();
            let row = Row::new(id.get(0), 5);
            let parent = Some(parent);
            model.insert(Row { parent, ..row })?;
        }
        Ok(())
    }

    /// What a worker writes under a lease that it got, whoever holds the event by now.
    async fn write(&self, model: &mut Model, granted: Granted, step: &Step) -> Result<(), String> {
        let (lease, owner) = (granted.lease, name(granted.worker));
        match *step {
            Step::Complete {
                all, starts, over, ..
            } => {
                let of_it = |id: &i64| {
                    let lease = |other: &&Granted| {
                        other.lease.token == lease.token && other.lease.id == *id
                    };
                    model.granted.iter().any(|other| lease(&other))
                };
                let whole = model.ids.iter().copied().filter(of_it);
                let completion = Completion {
                    token: lease.token,
                    done: if all { whole.collect() } else { vec![lease.id] },
                    start_to: starts.map(|pick| model.pick_id(pick)),
                    over,
                };
                let found = queue::complete(&self.client, std::slice::from_ref(&completion)).await;
                let found = found.unwrap()[0];
                let removed = queue::remove_ended(&self.client, &[lease.token]).await;
                removed.unwrap();
                let (done, start_to) = (&completion.done, completion.start_to);
                let expected = model.complete(lease.token, done, start_to, over);
                same(&expected, &(found.ended, found.cuts))
            }
            Step::Retry { delay, charged, .. } => {
                let fault = Fault::new("again", "because");
                let retried = Retried {
                    lease,
                    charged,
                    delay: hours(delay),
                    errors: vec![ErrorEntry::new(None, &fault, 1)],
                    progress: None,
                    deferred: Vec::new(),
                };
                let found = queue::retry(&self.client, owner, &[retried], &[]).await;
                same(
                    &model.retry(granted, delay, charged),
                    &sorted(found.unwrap().left),
                )
            }
            Step::HandBack { .. } => {
                let found = queue::hand_back(&self.client, owner, &[lease]).await;
                let expected = model.give_back(granted);
                same(&expected, &sorted(found.unwrap().left))
            }
            _ => {
                let found = queue::renew(&self.client, owner, &[lease.token], hours(LEASE)).await;
                let found = found.unwrap().first().map(|(_, cuts)| *cuts);
                same(&model.renew(granted), &found)
            }
        }
    }

    async fn sweep(&self, model: &mut Model, worker: usize, says_held: bool) -> Result<(), String> {
        let held = if says_held {
            model.tokens[worker].clone()
        } else {
            Vec::new()
        };
        let found = queue::sweep(&self.client, name(worker), &held).await;
        let found = found.unwrap();
        let expected = model.sweep(Some(worker), says_held);
        same(&expected, &(found.broken, found.lowest))
    }

    /// What operators do.
    async fn operate(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        match *step {
            Step::Requeue { pick } => self.requeue(model, pick).await,
            Step::Cancel { group } => {
                self.unblock(model, &group_name(group), UnblockAction::Cancel)
                    .await
            }
            Step::Skip { group } => {
                self.unblock(model, &group_name(group), UnblockAction::Skip)
                    .await
            }
            _ => self.change(model, step).await,
        }
    }

    async fn requeue(&self, model: &mut Model, pick: usize) -> Result<(), String> {
        let id = model.pick_id(pick);
        let request = RequeueRequest {
            ids: vec![id],
            audit: Audit::of("the script says so"),
        };
        let report = request.on(&self.client).await.unwrap();
        same(&u64::from(model.requeue(id)), &report.requeued)
    }

    /// What operators do by id, and a page at a time.
    async fn change(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        match *step {
            Step::CancelOne { pick } => {
                let id = model.pick_id(pick);
                let found = self.changed("cancel", id, "").await;
                same(&model.cancel_one(id), &found)
            }
            Step::Reschedule {
                pick,
                delay,
                expires_in,
            } => {
                let id = model.pick_id(pick);
                let mut times = in_hours("available_at", delay);
                if let Some(time) = expires_in {
                    times += &in_hours("expires_at", time);
                }
                let found = self.changed("reschedule", id, &times).await;
                same(&model.reschedule(id, delay, expires_in), &found)
            }
            _ => Ok(()),
        }
    }

    /// How many events a change by id has changed.
    async fn changed(&self, verb: &str, id: i64, how: &str) -> i64 {
        let sql = format!(
            "SELECT (tidegate.{verb}(ARRAY[{id}], reason => 'the script says so'{how})->>'changed')::bigint"
        );
        self.client.query_one(&sql, &[]).await.unwrap().get(0)
    }

    async fn unblock(
        &self,
        model: &mut Model,
        group: &str,
        how: UnblockAction,
    ) -> Result<(), String> {
        let request = UnblockRequest {
            group: group.to_owned(),
            how: flags(how),
            audit: Audit::of("the script says so"),
        };
        let report = request.on(&self.client).await.unwrap();
        if how == UnblockAction::Cancel {
            return same(&model.cancel(group), &report.id);
        }
        let skipped = model.skip(group);
        same(&skipped.as_ref().map(|(ended, _)| ended.id), &report.id)?;
        match (skipped, report.new_id) {
            (Some((original, available)), Some(id)) => model.insert(Row {
                available,
                delayed: available > 0,
                ..Row::replay(id, &original)
            }),
            (None, None) => Ok(()),
            (skipped, id) => Err(format!("{skipped:?} is put behind as {id:?}")),
        }
    }

    async fn replay(&self, model: &mut Model, pick: usize, renews: bool) -> Result<(), String> {
        let id = model.pick_id(pick);
        let request = ReplayRequest {
            ids: Some(vec![id]),
            audit: Audit::of("the script says so"),
            expires_in: renews.then(|| hours(RENEWED)),
            ..ReplayRequest::default()
        };
        let report = request.on(&self.client).await.unwrap();
        let original = model.replay(id, renews);
        same(&u64::from(original.is_some()), &report.replayed)?;
        match original {
            Some(original) => model.insert(Row::replay(report.events[0].id, &original)),
            None => Ok(()),
        }
    }

    async fn end(&self, model: &mut Model) -> Result<(), String> {
        let sql = "SELECT expired, abandoned FROM tidegate.sweep_events(0)";
        let row = self.client.query_one(sql, &[]).await.unwrap();
        let mut found: (Vec<i64>, Vec<i64>) = (row.get(0), row.get(1));
        found.0.sort_unstable();
        found.1.sort_unstable();
        same(&model.end_hopeless(), &found)
    }

    async fn clean(&self, model: &mut Model) -> Result<(), String> {
        let options = CleanupOptions::default();
        let report = cleanup(&self.db.database(), &options, CleanupHooks::default()).await;
        let report = report.unwrap();
        let (expired, abandoned) = model.end_hopeless();
        let gone = model.clean();
        let count = |number: u64| usize::try_from(number).unwrap();
        let removed = count(report.rows_deleted) + count(report.rows_dropped);
        same(
            &(expired.len(), abandoned.len(), gone),
            &(count(report.expired), count(report.abandoned), removed),
        )
    }

    /// The clock cannot be moved, so everything else is, past the triggers.
    async fn pass(&self, hours: i64) {
        let sql = format!(
            "BEGIN;
             SET LOCAL session_replication_role = replica;
             UPDATE tidegate.event_queue
                SET available_at = available_at - interval '{hours} hours', expires_at = expires_at - interval '{hours} hours',
                    created_at = created_at - interval '{hours} hours';
             UPDATE tidegate.lease
                SET taken_at = taken_at - interval '{hours} hours', renewed_at = renewed_at - interval '{hours} hours',
                    expires_at = expires_at - interval '{hours} hours';
             UPDATE tidegate.event_log
                SET finished_at = finished_at - interval '{hours} hours', deadline = deadline - interval '{hours} hours',
                    expires_at = expires_at - interval '{hours} hours', created_at = created_at - interval '{hours} hours';
             COMMIT"
        );
        self.client.batch_execute(&sql).await.unwrap();
    }

    /// The tables, and what in them is out of order.
    pub async fn tables(&self) -> (Tables, Vec<String>) {
        let [queue, leases, log, audit, disorder] = &self.reads;
        let (queue, leases, log, audit, disorder) = tokio::try_join!(
            self.client.query(queue, &[]),
            self.client.query(leases, &[]),
            self.client.query(log, &[]),
            self.client.query(audit, &[]),
            self.client.query(disorder, &[])
        )
        .unwrap();
        let tables = Tables {
            queue: queue.iter().map(live_row).collect(),
            leases: leases.iter().map(hold).collect(),
            log: log.iter().map(ended_row).collect(),
            audit: audit.iter().map(|row| (row.get(0), row.get(1))).collect(),
        };
        (tables, disorder.iter().map(|row| row.get(0)).collect())
    }
}

/// Where the worker's next lease begins.
fn begin(model: &mut Model, worker: usize, from: From) {
    let id = match from {
        From::Back(pick) => model.pick_id(pick),
        From::Start | From::On => i64::MAX,
    };
    let walk = &mut model.walks[worker];
    walk.at.after = walk.at.after.min(id - 1).max(0);
    if from == From::Start || walk.at.after == 0 {
        *walk = Walk::default();
    }
    if from != From::On {
        walk.blocked.clear();
    }
}

/// What a lease brought, as the model says it.
fn brought(batch: queue::LeasedBatch) -> Batch {
    let fate = |fate: Fate| match fate {
        Fate::Run => 0,
        Fate::Expired => 1,
        Fate::Abandoned => 2,
    };
    let events = batch.events.iter().map(|event| {
        let attempts = i32::try_from(event.attempts).unwrap();
        (event.lease.id, fate(event.fate), attempts)
    });
    let mut blocked = batch.blocked;
    blocked.sort_unstable();
    Batch {
        events: events.collect(),
        started_to: batch.started_to,
        suspect: batch.suspect,
        scanned: batch.scanned as usize,
        blocked,
        after: batch.walk.after,
    }
}

/// The queue, the leases, the log and the audit, with times as hours from now; and what is out of order.
fn reads() -> [String; 5] {
    let left = |column: &str, name: &str| {
        format!("round(extract(epoch FROM {column} - clock_timestamp()) / 3600)::bigint AS {name}")
    };
    let both = "id, kind, group_key, dedup_key, attempts, max_attempts, parent_id, replay_of,
                ARRAY(SELECT e->>'code' FROM jsonb_array_elements(errors) AS e) AS codes";
    let queue = format!(
        "SELECT {both}, lapses, delayed, last_error, {}, {}
           FROM tidegate.event_queue ORDER BY id",
        left("available_at", "available"),
        left("expires_at", "deadline_in"),
    );
    let leases = format!(
        "SELECT token, worker, started_to, cuts, {}, {},
                ARRAY(SELECT id FROM unnest(ids) AS r, generate_series(lower(r), upper(r) - 1) AS id ORDER BY id) AS held
           FROM tidegate.lease ORDER BY token",
        left("taken_at", "taken"),
        left("expires_at", "lasts"),
    );
    let log = format!(
        "SELECT {both}, lease_token, processing_started_at IS NOT NULL AS started, status, {}, {}
           FROM tidegate.event_log ORDER BY id",
        left("deadline", "deadline_in"),
        left("expires_at", "kept_for"),
    );
    let audit = "SELECT action, ids FROM tidegate.audit, public.known
                  WHERE id > known.audit AND action <> 'cleanup' ORDER BY id";
    let disorder = "SELECT 'unordered: ' || u FROM tidegate.unordered_leases() AS u
                    UNION ALL SELECT 'unmarked: ' || u FROM tidegate.unmarked_events() AS u
                    UNION ALL SELECT format('miscounted: %s %s, %s ended and %s in the figures', kind, status, l.events, m.events)
                      FROM (SELECT kind, status, count(*) AS events FROM public.ever_ended GROUP BY 1, 2) AS l
                      FULL JOIN (SELECT kind, status, sum(events) AS events FROM tidegate.minute_stats GROUP BY 1, 2) AS m
                           USING (kind, status) WHERE l.events IS DISTINCT FROM m.events";
    [queue, leases, log, audit.to_owned(), disorder.to_owned()]
}

fn kind(row: &SqlRow) -> usize {
    let kind: &str = row.get("kind");
    Probe::KINDS
        .iter()
        .position(|known| *known == kind)
        .unwrap()
}

fn hold(row: &SqlRow) -> Hold {
    Hold {
        token: row.get("token"),
        worker: worker(row.get("worker")),
        ids: row.get::<_, Vec<i64>>("held").into_iter().collect(),
        started_to: row.get("started_to"),
        taken: row.get("taken"),
        until: row.get("lasts"),
        cuts: row.get("cuts"),
    }
}

fn live_row(row: &SqlRow) -> Row {
    Row {
        id: row.get("id"),
        kind: kind(row),
        group: row.get("group_key"),
        dedup: row.get("dedup_key"),
        attempts: row.get("attempts"),
        lapses: row.get("lapses"),
        max_attempts: row.get("max_attempts"),
        delayed: row.get("delayed"),
        available: row.get("available"),
        deadline: row.get("deadline_in"),
        last_error: row.get("last_error"),
        codes: row.get("codes"),
        parent: row.get("parent_id"),
        replay_of: row.get("replay_of"),
    }
}

fn status(name: &str) -> &'static str {
    match name {
        "COMPLETED" => "COMPLETED",
        "COMPLETED_WITH_ERRORS" => "COMPLETED_WITH_ERRORS",
        _ => "FAILED",
    }
}

fn ended_row(row: &SqlRow) -> Ended {
    Ended {
        id: row.get("id"),
        kind: kind(row),
        group: row.get("group_key"),
        dedup: row.get("dedup_key"),
        status: status(row.get("status")),
        attempts: row.get("attempts"),
        max_attempts: row.get("max_attempts"),
        deadline: row.get("deadline_in"),
        started: row.get("started"),
        token: row.get("lease_token"),
        codes: row.get("codes"),
        parent: row.get("parent_id"),
        replay_of: row.get("replay_of"),
        kept_until: row.get("kept_for"),
    }
}
