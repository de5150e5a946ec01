//! The real database: does each step by the library, and shows its tables as the model has them.

use std::time::Duration;

use tidegate::event::Fate;
use tidegate::operate::{How, ReplayRequest, RequeueRequest, UnblockRequest};
use tidegate::outcome::Status;
use tidegate::queue::{self, ErrorEntry, Finalization, LeaseRequest, Released, Retried};
use tidegate::retention::{CleanupHooks, CleanupOptions, cleanup};
use tidegate::{Event, Fault, NewEvent};
use tokio_postgres::{Client, Row as SqlRow, Statement};
use uuid::Uuid;

use super::model::{Ended, Granted, LEASE, Model, RENEWED, Row, Tables};
use super::step::{End, Step};
use crate::probe::{Probe, act, probe_database};
use crate::support::TestDb;

pub struct World {
    db: TestDb,
    client: Client,
    /// What reads the queue, the log and the audit: prepared, for they are asked after each step.
    reads: [Statement; 3],
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

fn group_name(group: u8) -> String {
    format!("group {group}")
}

impl World {
    /// A database of its own, changed by this SQL.
    pub async fn new(sql: &str) -> Self {
        let db = probe_database().await;
        let client = db.client().await;
        let known = "CREATE TABLE public.known AS SELECT 0::bigint AS audit";
        client.batch_execute(known).await.unwrap();
        client.batch_execute(sql).await.unwrap();
        let [queue, log, audit] = reads();
        let reads = [
            client.prepare(&queue).await.unwrap(),
            client.prepare(&log).await.unwrap(),
            client.prepare(&audit).await.unwrap(),
        ];
        Self { db, client, reads }
    }

    /// Empties the tables. The audit cannot be emptied; what is there already is not shown.
    pub async fn reset(&self) {
        let sql = "DELETE FROM tidegate.event_queue; DELETE FROM tidegate.event_log;
                   UPDATE public.known SET audit = (SELECT coalesce(max(id), 0) FROM tidegate.audit)";
        self.client.batch_execute(sql).await.unwrap();
    }

    pub async fn apply(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        match *step {
            Step::Publish { .. } => self.publish(model, step).await,
            Step::Lease { .. } => self.lease(model, step).await,
            Step::Promote => {
                let found = queue::promote(&self.client, 1000, None).await.unwrap();
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
            Step::Retry { pick, .. } | Step::Release { pick } | Step::Renew { pick } => {
                match model.pick_lease(pick) {
                    Some(granted) => self.give_back(model, granted, step).await,
                    None => Ok(()),
                }
            }
            Step::Requeue { pick } => self.requeue(model, pick).await,
            Step::Cancel { group } => self.unblock(model, &group_name(group), How::Cancel).await,
            Step::Skip { group } => self.unblock(model, &group_name(group), How::Skip).await,
            Step::Replay { pick, renews } => self.replay(model, pick, renews).await,
            Step::Sweep => self.sweep(model).await,
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
            group,
            dedup,
            delay,
            expires_in,
            max_attempts,
        } = *step
        else {
            return Ok(());
        };
        let mut event = act("x").max_attempts(max_attempts).delay(hours(delay));
        let mut row = Row {
            available: delay,
            delayed: delay > 0,
            deadline: expires_in,
            ..Row::new(0, i32::from(max_attempts))
        };
        if let Some(group) = group.map(group_name) {
            event = event.group(group.clone());
            row.group = Some(group);
        }
        if let Some(key) = dedup.map(|key| format!("key {key}")) {
            event = event.dedup(key.clone());
            row.dedup = Some(key);
        }
        if let Some(time) = expires_in {
            event = event.start_within(hours(time));
        }
        let published = queue::publish(&self.client, &event).await.unwrap();
        if let Some(twin) = model.twin(row.dedup.as_ref()) {
            return same(&(twin, false), &(published.id, published.created));
        }
        same(&true, &published.created)?;
        row.id = published.id;
        model.insert(row)
    }

    async fn lease(&self, model: &mut Model, step: &Step) -> Result<(), String> {
        let Step::Lease {
            worker,
            limit,
            extra,
            says_held,
            knows,
        } = *step
        else {
            return Ok(());
        };
        let token = Uuid::new_v4();
        let held = if says_held {
            model.tokens[worker].clone()
        } else {
            Vec::new()
        };
        let known = knows.map(|knows| model.known(knows));
        let request = LeaseRequest {
            limit,
            page: limit + extra,
            after: 0,
            token,
            held: &held,
            timeout: hours(LEASE),
            kinds: Probe::KINDS,
            blocked: &[],
            known: known.as_ref(),
            now: None,
        };
        let batch = queue::lease(&self.client, &request).await.unwrap();
        let fate = |fate: Fate| match fate {
            Fate::Run => 0,
            Fate::Expired => 1,
            Fate::Abandoned => 2,
        };
        let events = batch.events.iter().map(|event| {
            let attempts = i32::try_from(event.attempts).unwrap();
            (event.lease.id, fate(event.fate), attempts)
        });
        let found = (events.collect(), batch.scanned as usize);
        let page = (limit, limit + extra);
        let met = known.and_then(|known| model.met(&known, worker, page.1, says_held));
        same(&met, &batch.met)?;
        same(&model.lease(worker, token, page, says_held), &found)
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
            lease: granted.lease,
            status,
            errors,
            result: None,
            progress: None,
            follow_ups,
        };
        let flushed = queue::finalize(&self.client, &[finalization])
            .await
            .unwrap();
        let ended = model.finalize(granted.lease, end);
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

    async fn give_back(
        &self,
        model: &mut Model,
        granted: Granted,
        step: &Step,
    ) -> Result<(), String> {
        let lease = granted.lease;
        let (expected, found) = match *step {
            Step::Retry { delay, .. } => {
                let fault = Fault::new("again", "because");
                let retried = Retried {
                    lease,
                    delay: hours(delay),
                    errors: vec![ErrorEntry::new(None, &fault, 1)],
                    progress: None,
                };
                let found = queue::retry(&self.client, &[retried]).await;
                (model.retry(lease, delay), found)
            }
            Step::Release { .. } => {
                let counted = granted.counted;
                let released = Released { lease, counted };
                let found = queue::release(&self.client, &[released]).await;
                (model.release(granted), found)
            }
            _ => {
                let found = queue::renew(&self.client, &[lease], hours(LEASE)).await;
                (model.renew(lease), found)
            }
        };
        same(&expected, &!found.unwrap().is_empty())
    }

    async fn requeue(&self, model: &mut Model, pick: usize) -> Result<(), String> {
        let id = model.pick_id(pick);
        let request = RequeueRequest {
            ids: vec![id],
            reason: "the script says so".to_owned(),
            actor: None,
        };
        let report = queue::requeue(&self.client, &request).await.unwrap();
        same(&u64::from(model.requeue(id)), &report.requeued)
    }

    async fn unblock(&self, model: &mut Model, group: &str, how: How) -> Result<(), String> {
        let request = UnblockRequest {
            group_key: group.to_owned(),
            how,
            reason: "the script says so".to_owned(),
            actor: None,
        };
        let report = queue::unblock(&self.client, &request).await.unwrap();
        if how == How::Cancel {
            return same(&model.cancel(group), &report.id);
        }
        let skipped = model.skip(group);
        same(&skipped.as_ref().map(|ended| ended.id), &report.id)?;
        match (skipped, report.new_id) {
            (Some(original), Some(id)) => model.insert(Row::replay(id, &original)),
            (None, None) => Ok(()),
            (skipped, id) => Err(format!("{skipped:?} is put behind as {id:?}")),
        }
    }

    async fn replay(&self, model: &mut Model, pick: usize, renews: bool) -> Result<(), String> {
        let id = model.pick_id(pick);
        let request = ReplayRequest {
            ids: Some(vec![id]),
            reason: "the script says so".to_owned(),
            expires_in: renews.then(|| hours(RENEWED)),
            ..ReplayRequest::default()
        };
        let report = queue::replay(&self.client, &request).await.unwrap();
        let original = model.replay(id, renews);
        same(&u64::from(original.is_some()), &report.replayed)?;
        match original {
            Some(original) => model.insert(Row::replay(report.events[0].id, &original)),
            None => Ok(()),
        }
    }

    async fn sweep(&self, model: &mut Model) -> Result<(), String> {
        let sql = "SELECT expired, abandoned FROM tidegate.sweep_events(0)";
        let row = self.client.query_one(sql, &[]).await.unwrap();
        let mut found: (Vec<i64>, Vec<i64>) = (row.get(0), row.get(1));
        found.0.sort_unstable();
        found.1.sort_unstable();
        same(&model.sweep(), &found)
    }

    async fn clean(&self, model: &mut Model) -> Result<(), String> {
        let options = CleanupOptions::default();
        let report = cleanup(&self.db.database(), &options, CleanupHooks::default()).await;
        let report = report.unwrap();
        let (expired, abandoned) = model.sweep();
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
                    lease_expires_at = lease_expires_at - interval '{hours} hours', created_at = created_at - interval '{hours} hours',
                    processing_started_at = processing_started_at - interval '{hours} hours';
             UPDATE tidegate.event_log
                SET finished_at = finished_at - interval '{hours} hours', deadline = deadline - interval '{hours} hours',
                    expires_at = expires_at - interval '{hours} hours', created_at = created_at - interval '{hours} hours';
             COMMIT"
        );
        self.client.batch_execute(&sql).await.unwrap();
    }

    pub async fn tables(&self) -> Tables {
        let [queue, log, audit] = &self.reads;
        let (queue, log, audit) = tokio::try_join!(
            self.client.query(queue, &[]),
            self.client.query(log, &[]),
            self.client.query(audit, &[])
        )
        .unwrap();
        Tables {
            queue: queue.iter().map(live_row).collect(),
            log: log.iter().map(ended_row).collect(),
            audit: audit.iter().map(|row| (row.get(0), row.get(1))).collect(),
        }
    }
}

/// The queue, the log and the audit, with times as hours from now.
fn reads() -> [String; 3] {
    let left = |column: &str, name: &str| {
        format!("round(extract(epoch FROM {column} - clock_timestamp()) / 3600)::bigint AS {name}")
    };
    let both =
        "id, group_key, dedup_key, attempts, max_attempts, lease_token, parent_id, replay_of,
                processing_started_at IS NOT NULL AS started,
                ARRAY(SELECT e->>'code' FROM jsonb_array_elements(errors) AS e) AS codes";
    let queue = format!(
        "SELECT {both}, status = 'PROCESSING' AS processing, delayed, last_error, {}, {}, {}
           FROM tidegate.event_queue ORDER BY id",
        left("available_at", "available"),
        left("expires_at", "deadline_in"),
        left("lease_expires_at", "leased_for"),
    );
    let log = format!(
        "SELECT {both}, status, {}, {} FROM tidegate.event_log ORDER BY id",
        left("deadline", "deadline_in"),
        left("expires_at", "kept_for"),
    );
    let audit = "SELECT action, ids FROM tidegate.audit, public.known
                  WHERE id > known.audit AND action <> 'cleanup' ORDER BY id";
    [queue, log, audit.to_owned()]
}

fn live_row(row: &SqlRow) -> Row {
    let token: Option<Uuid> = row.get("lease_token");
    assert_eq!(row.get::<_, bool>("processing"), token.is_some(), "{row:?}");
    Row {
        id: row.get("id"),
        group: row.get("group_key"),
        dedup: row.get("dedup_key"),
        attempts: row.get("attempts"),
        max_attempts: row.get("max_attempts"),
        delayed: row.get("delayed"),
        available: row.get("available"),
        deadline: row.get("deadline_in"),
        started: row.get("started"),
        token,
        leased_until: row.get("leased_for"),
        last_error: row.get("last_error"),
        codes: row.get("codes"),
        parent: row.get("parent_id"),
        replay_of: row.get("replay_of"),
    }
}

fn ended_row(row: &SqlRow) -> Ended {
    Ended {
        id: row.get("id"),
        group: row.get("group_key"),
        dedup: row.get("dedup_key"),
        status: match row.get("status") {
            "COMPLETED" => "COMPLETED",
            "COMPLETED_WITH_ERRORS" => "COMPLETED_WITH_ERRORS",
            _ => "FAILED",
        },
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
