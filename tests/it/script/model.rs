//! The queue as a sequential program: what each statement does when nothing happens beside it. Time is
//! counted in hours since the script began.

use std::collections::BTreeSet;

use tidegate::lease::Lease;
use tidegate::queue;
use uuid::Uuid;

use super::step::End;

/// A lease's length.
pub const LEASE: i64 = 1;

const DAY: i64 = 24;

/// A live event. Times are what the tables show: hours from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub id: i64,
    pub kind: usize,
    pub group: Option<String>,
    pub dedup: Option<String>,
    pub attempts: i32,
    pub lapses: i32,
    pub max_attempts: i32,
    pub delayed: bool,
    pub available: i64,
    pub deadline: Option<i64>,
    pub last_error: Option<String>,
    pub codes: Vec<String>,
    pub parent: Option<i64>,
    pub replay_of: Option<i64>,
}

/// A lease. An end does not shrink it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub token: Uuid,
    pub worker: usize,
    pub ids: BTreeSet<i64>,
    /// Handlers of events up to here may have started.
    pub started_to: i64,
    pub taken: i64,
    pub until: i64,
    pub cuts: i32,
}

/// An event in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub id: i64,
    pub kind: usize,
    pub group: Option<String>,
    pub dedup: Option<String>,
    pub status: &'static str,
    pub attempts: i32,
    pub max_attempts: i32,
    pub deadline: Option<i64>,
    pub started: bool,
    pub token: Option<Uuid>,
    pub codes: Vec<String>,
    pub parent: Option<i64>,
    pub replay_of: Option<i64>,
    pub kept_until: i64,
}

/// All that is compared.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tables {
    pub queue: Vec<Row>,
    /// In the order of their tokens.
    pub leases: Vec<Hold>,
    pub log: Vec<Ended>,
    /// Operators' actions: which, and on what.
    pub audit: Vec<(String, Vec<i64>)>,
}

/// A lease as its worker got it.
#[derive(Debug, Clone, Copy)]
pub struct Granted {
    pub lease: Lease,
    pub worker: usize,
    /// Whether the event was to run.
    pub runs: bool,
}

#[derive(Debug, Default)]
pub struct Model {
    tables: Tables,
    pub granted: Vec<Granted>,
    /// Each worker's tokens.
    pub tokens: [Vec<Uuid>; 2],
    /// Where each worker's walk stands.
    pub walks: [Walk; 2],
    /// Every id that was ever given.
    pub ids: Vec<i64>,
}

/// What a worker's walk knows. Only the database can say how old it is.
#[derive(Debug, Default, Clone)]
pub struct Walk {
    pub at: queue::Walk,
    /// Groups that it has found blocked.
    pub blocked: Vec<String>,
}

/// What to lease.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub worker: usize,
    pub token: Uuid,
    pub limit: usize,
    pub window: usize,
    pub says_held: bool,
    pub kinds: usize,
}

/// What a lease brings.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Id, fate and attempts of each.
    pub events: Vec<(i64, i32, i32)>,
    pub started_to: i64,
    pub suspect: bool,
    pub scanned: usize,
    pub blocked: Vec<String>,
    pub after: i64,
}

impl Model {
    /// A token for the next lease: the same in every run of a script, since leases are locked in their
    /// tokens' order.
    pub fn next_token(&self) -> Uuid {
        let given: usize = self.tokens.iter().map(Vec::len).sum();
        Uuid::from_u128(given as u128 + 1)
    }

    pub fn tables(&self) -> Tables {
        self.tables.clone()
    }

    fn live(&mut self, id: i64) -> Option<&mut Row> {
        self.tables.queue.iter_mut().find(|row| row.id == id)
    }

    /// The lease under which an event is in hand.
    fn hold_of(&self, id: i64) -> Option<&Hold> {
        self.tables
            .leases
            .iter()
            .find(|hold| hold.ids.contains(&id))
    }

    fn is_held(&self, lease: Lease) -> bool {
        let is_live = self.tables.queue.iter().any(|row| row.id == lease.id);
        is_live
            && self
                .hold_of(lease.id)
                .is_some_and(|hold| hold.token == lease.token)
    }

    /// One of all leases ever granted, most of which are held no more.
    pub fn pick_lease(&self, pick: usize) -> Option<Granted> {
        let count = self.granted.len();
        // Counted from the last, which is the most likely to be held.
        (count > 0).then(|| self.granted[count - 1 - pick % count])
    }

    /// One of all ids ever, or one that nobody has.
    pub fn pick_id(&self, pick: usize) -> i64 {
        let unknown = i64::from(i32::MAX);
        let place = pick % (self.ids.len() + 1);
        self.ids.get(place).copied().unwrap_or(unknown)
    }

    pub fn twin(&self, dedup: Option<&String>) -> Option<i64> {
        let has_key = |row: &&Row| dedup.is_some() && row.dedup.as_ref() == dedup;
        self.tables.queue.iter().find(has_key).map(|row| row.id)
    }

    /// An event is published while another one has its key: whether it takes that one's place; `None` when
    /// that is in another group, and the publish is refused.
    pub fn publish_again(&mut self, twin: i64, new: &Row, replaces: bool) -> Option<bool> {
        let is_held = self.hold_of(twin).is_some();
        let row = self.live(twin).filter(|_| replaces);
        let Some(row) = row else {
            return Some(false);
        };
        if row.group != new.group {
            return None;
        }
        let is_seen = row.attempts > 0 || row.lapses > 0 || row.last_error.is_some();
        if is_held || is_seen || row.replay_of.is_some() {
            return Some(false);
        }
        if row.delayed || new.delayed {
            row.available = new.available;
            row.delayed = new.delayed;
        }
        row.max_attempts = new.max_attempts;
        row.deadline = new.deadline;
        Some(true)
    }

    pub fn cancel_one(&mut self, id: i64) -> i64 {
        let is_live = self.live(id).is_some();
        if is_live {
            self.end_by_operator(id, "cancelled");
        }
        self.note("cancel", is_live.then_some(id));
        i64::from(is_live)
    }

    /// What is in hand is left alone.
    pub fn reschedule(&mut self, id: i64, delay: i64, expires_in: Option<i64>) -> i64 {
        let is_held = self.hold_of(id).is_some();
        let row = self.live(id).filter(|_| !is_held);
        let is_changed = row.is_some();
        if let Some(row) = row {
            row.available = delay;
            row.delayed = delay > 0;
            row.deadline = expires_in.or(row.deadline);
        }
        self.note("reschedule", is_changed.then_some(id));
        i64::from(is_changed)
    }

    /// A new event; the database gives the id.
    pub fn insert(&mut self, row: Row) -> Result<(), String> {
        let last = self.ids.last().copied().unwrap_or(0);
        if row.id <= last {
            return Err(format!("id {} was given after {last}", row.id));
        }
        self.ids.push(row.id);
        self.tables.queue.push(row);
        Ok(())
    }

    /// Takes the next free events of a walk. One with a group is taken only if everything ahead of it in its
    /// group is taken with it, or is in a lease of the worker that it says to hold. How the database knows
    /// that is its own affair.
    pub fn lease(&mut self, wanted: Wanted) -> Batch {
        let after = self.walks[wanted.worker].at.after;
        let ready = self.ready(wanted, after);
        let mut page: Vec<&Row> = ready.iter().take(wanted.limit).collect();
        let Some(first) = page.first() else {
            return Batch {
                after,
                ..Batch::default()
            };
        };
        let suspect = first.lapses > 0;
        let looked_at = page.len();
        let alone = page.iter().position(|row| row.lapses > 0);
        page.truncate(if suspect {
            1
        } else {
            alone.unwrap_or(looked_at)
        });
        // Not the end of the queue.
        let cut = page.len() < looked_at;
        let scanned = if cut { wanted.limit } else { looked_at };
        let (mine, blocked) = self.cut(wanted, &page);
        let after = page.last().map_or(after, |row| row.id);
        let suspect = suspect && !mine.is_empty();
        let started = mine.iter().take(wanted.window).next_back();
        let started_to = started.copied().filter(|_| !suspect).unwrap_or(0);
        // None on its last attempt starts with its lease.
        let page = ready.iter().take(wanted.limit);
        let last = page
            .clone()
            .find(|row| row.attempts + 1 >= row.max_attempts);
        let marked_to = last.map_or(started_to, |row| started_to.min(row.id - 1));
        let started = mine.iter().filter(|id| **id <= marked_to);
        let started_to = started.copied().next_back().unwrap_or(0);
        let rows = mine
            .iter()
            .filter_map(|id| ready.iter().find(|row| row.id == *id));
        let events = rows.map(Row::handed_over).collect();
        self.grant(wanted, mine, marked_to, &events);
        Batch {
            events,
            started_to,
            suspect,
            scanned,
            blocked,
            after,
        }
    }

    /// What is free behind an id.
    fn ready(&self, wanted: Wanted, after: i64) -> Vec<Row> {
        let passed_by = &self.walks[wanted.worker].blocked;
        let is_ready = |row: &&Row| {
            row.id > after
                && !row.delayed
                && row.available <= 0
                && row.kind < wanted.kinds
                && self.hold_of(row.id).is_none()
                && !row
                    .group
                    .as_ref()
                    .is_some_and(|group| passed_by.contains(group))
        };
        self.tables.queue.iter().filter(is_ready).cloned().collect()
    }

    /// What may be taken of a page, and the groups of which nothing may.
    fn cut(&self, wanted: Wanted, page: &[&Row]) -> (BTreeSet<i64>, Vec<String>) {
        let in_page = |id: i64| page.iter().any(|row| row.id == id);
        let is_own = |id: i64| {
            let hold = self.hold_of(id);
            wanted.says_held && hold.is_some_and(|hold| hold.worker == wanted.worker)
        };
        let stranger = |group: &String| {
            let strange = |row: &&Row| {
                row.group.as_ref() == Some(group) && !in_page(row.id) && !is_own(row.id)
            };
            self.tables.queue.iter().find(strange).map(|row| row.id)
        };
        let bar = |row: &Row| row.group.as_ref().and_then(stranger);
        let may = |row: &&&Row| bar(row).is_none_or(|id| id > row.id);
        let mine: BTreeSet<i64> = page.iter().filter(may).map(|row| row.id).collect();
        let mut blocked = BTreeSet::new();
        for group in page.iter().filter_map(|row| row.group.clone()) {
            let of_it = |row: &&&Row| row.group.as_ref() == Some(&group);
            if page.iter().filter(of_it).all(|row| !mine.contains(&row.id)) {
                blocked.insert(group);
            }
        }
        (mine, blocked.into_iter().collect())
    }

    fn grant(
        &mut self,
        wanted: Wanted,
        ids: BTreeSet<i64>,
        started_to: i64,
        events: &Vec<(i64, i32, i32)>,
    ) {
        let Wanted { token, worker, .. } = wanted;
        self.tokens[worker].push(token);
        if ids.is_empty() {
            return;
        }
        for (id, fate, _) in events {
            let lease = Lease { id: *id, token };
            let runs = *fate == 0;
            self.granted.push(Granted {
                lease,
                worker,
                runs,
            });
        }
        let leases = &mut self.tables.leases;
        let place = leases.partition_point(|hold| hold.token < token);
        leases.insert(
            place,
            Hold {
                token,
                worker,
                ids,
                started_to,
                taken: 0,
                until: LEASE,
                cuts: 0,
            },
        );
    }

    /// Ids, and the lowest.
    pub fn promote(&mut self) -> (u64, Option<i64>) {
        let due = |row: &&mut Row| row.delayed && (row.available <= 0 || row.is_late());
        let mut promoted = Vec::new();
        for row in self.tables.queue.iter_mut().filter(due) {
            (row.available, row.delayed) = (row.available.min(0), false);
            promoted.push(row.id);
        }
        (promoted.len() as u64, promoted.first().copied())
    }

    /// Whether it was held, and so is in the log now.
    pub fn finalize(&mut self, granted: Granted, end: End) -> bool {
        let (status, code) = match end {
            End::Completed => ("COMPLETED", None),
            End::CompletedWithErrors => ("COMPLETED_WITH_ERRORS", Some("odd")),
            End::Failed => ("FAILED", Some("given_up")),
        };
        let is_held = self.is_held(granted.lease);
        if is_held {
            let by = By::Worker(granted.lease.token, granted.runs);
            self.end(granted.lease.id, status, code, by);
        }
        is_held
    }

    /// How many were held, and how often something was taken from the lease, if it is there.
    pub fn complete(
        &mut self,
        token: Uuid,
        done: &[i64],
        start_to: Option<i64>,
        over: bool,
    ) -> (u64, Option<i32>) {
        let Some(hold) = self
            .tables
            .leases
            .iter_mut()
            .find(|hold| hold.token == token)
        else {
            return (0, None);
        };
        let cuts = hold.cuts;
        if let (Some(id), false) = (start_to, over) {
            hold.started_to = hold.started_to.max(id);
        }
        let ids = hold.ids.clone();
        let mut ended = 0;
        for id in done {
            if self.is_held(Lease { id: *id, token }) {
                self.end(*id, "COMPLETED", None, By::Worker(token, true));
                ended += 1;
            }
        }
        if over && self.tables.queue.iter().all(|row| !ids.contains(&row.id)) {
            self.tables.leases.retain(|hold| hold.token != token);
        }
        (ended, Some(cuts))
    }

    fn end(&mut self, id: i64, status: &'static str, code: Option<&str>, by: By) {
        let Some(place) = self.tables.queue.iter().position(|row| row.id == id) else {
            return;
        };
        let hold = self.hold_of(id);
        let has_run = hold.is_some_and(|hold| id <= hold.started_to);
        let is_leased = hold.is_some();
        let row = self.tables.queue.remove(place);
        let attempts = match by {
            By::Worker(_, runs) => row.attempts + i32::from(runs),
            By::Operator => (row.attempts + i32::from(has_run)).min(row.max_attempts),
            By::Nobody => row.attempts,
        };
        let kept = if status == "COMPLETED" { 30 } else { 90 };
        let mut codes = row.codes;
        codes.extend(code.map(ToOwned::to_owned));
        let log = &mut self.tables.log;
        let place = log.partition_point(|ended| ended.id < id);
        log.insert(
            place,
            Ended {
                id,
                kind: row.kind,
                group: row.group,
                dedup: row.dedup,
                status,
                attempts,
                max_attempts: row.max_attempts,
                deadline: row.deadline,
                started: is_leased,
                token: by.token(),
                codes,
                parent: row.parent,
                replay_of: row.replay_of,
                kept_until: kept * DAY,
            },
        );
    }

    /// All that leave their worker's hands.
    pub fn retry(&mut self, granted: Granted, delay: i64, charged: bool) -> Vec<i64> {
        let id = granted.lease.id;
        let left = self.give_back(granted);
        if left.is_empty() {
            return left;
        }
        if let Some(row) = self.live(id) {
            row.attempts += i32::from(charged);
            row.lapses *= i32::from(!charged);
            (row.available, row.delayed) = (delay, delay > 0);
            let again = Some("again: because".to_owned());
            // What is put off for one reason is listed once.
            if charged || row.last_error != again {
                row.codes.push("again".to_owned());
            }
            row.last_error = again;
        }
        left
    }

    /// The worker gives back an event of a lease, if that one holds it.
    pub fn give_back(&mut self, granted: Granted) -> Vec<i64> {
        let Granted { lease, worker, .. } = granted;
        let hold = self.hold_of(lease.id);
        if hold.is_some_and(|hold| hold.token == lease.token) {
            self.hand_back(worker, lease.id, false)
        } else {
            Vec::new()
        }
    }

    /// An event leaves its worker's hands, and what stands behind it in its group there.
    pub fn hand_back(&mut self, worker: usize, id: i64, taken_away: bool) -> Vec<i64> {
        let of_worker = |row: &&Row| {
            let hold = self.hold_of(row.id);
            hold.is_some_and(|hold| hold.worker == worker)
        };
        let held: Vec<&Row> = self.tables.queue.iter().filter(of_worker).collect();
        let Some(first) = held.iter().find(|row| row.id == id) else {
            return Vec::new();
        };
        let goes = |row: &&&Row| {
            row.id == id || row.id > id && row.group.is_some() && row.group == first.group
        };
        let left: Vec<i64> = held.iter().filter(goes).map(|row| row.id).collect();
        // What stands behind may have run, if its worker had seen the end of what is taken away; it keeps its
        // attempts all the same.
        let may_have_run = |row: &Row| {
            let lease = self.hold_of(row.id);
            taken_away
                && row.id != id
                && left.contains(&row.id)
                && lease.is_some_and(|lease| row.id <= lease.started_to)
        };
        let ran = self.tables.queue.iter().filter(|row| may_have_run(row));
        let ran: Vec<i64> = ran.map(|row| row.id).collect();
        let charged = |row: &&mut Row| ran.contains(&row.id) && row.attempts < row.max_attempts;
        for row in self.tables.queue.iter_mut().filter(charged) {
            row.attempts += 1;
            row.max_attempts = (row.max_attempts + 1).min(1000);
        }
        for hold in &mut self.tables.leases {
            let before = hold.ids.len();
            hold.ids.retain(|id| !left.contains(id));
            hold.cuts += i32::from(taken_away && hold.ids.len() < before);
        }
        self.tables.leases.retain(|hold| !hold.ids.is_empty());
        left
    }

    /// Whether the lease is there, and how often something was taken from it.
    pub fn renew(&mut self, granted: Granted) -> Option<i32> {
        let token = granted.lease.token;
        let hold = self
            .tables
            .leases
            .iter_mut()
            .find(|hold| hold.token == token)?;
        hold.until = LEASE;
        Some(hold.cuts)
    }

    /// How many leases are broken or given back, and the lowest id that came free.
    pub fn sweep(&mut self, worker: Option<usize>, says_held: bool) -> (u64, Option<i64>) {
        let leases = std::mem::take(&mut self.tables.leases);
        let is_dead = |hold: &Hold| {
            let lives = |other: &Hold| other.worker == hold.worker && other.until > 0;
            Some(hold.worker) != worker && !leases.iter().any(lives)
        };
        let is_lost = |hold: &Hold| Some(hold.worker) == worker && !says_held;
        let lost: Vec<Hold> = leases
            .iter()
            .filter(|hold| is_lost(hold))
            .cloned()
            .collect();
        let dead: Vec<Hold> = leases
            .iter()
            .filter(|hold| is_dead(hold))
            .cloned()
            .collect();
        self.tables.leases = leases
            .iter()
            .filter(|hold| !is_lost(hold) && !is_dead(hold))
            .cloned()
            .collect();
        for hold in &dead {
            self.lapse(hold);
        }
        let broken = || lost.iter().chain(&dead);
        let lowest = broken().filter_map(|hold| hold.ids.first().copied()).min();
        (broken().count() as u64, lowest)
    }

    fn lapse(&mut self, hold: &Hold) {
        for row in &mut self.tables.queue {
            let started = hold.ids.contains(&row.id) && row.id <= hold.started_to;
            let in_time = row.deadline.is_none_or(|deadline| deadline > hold.taken);
            if started && in_time && !row.is_exhausted() {
                row.attempts += 1;
                row.lapses += 1;
                row.last_error = Some("lapsed: its worker went away".to_owned());
                row.codes.push("lapsed".to_owned());
            }
        }
    }

    pub fn requeue(&mut self, id: i64) -> bool {
        let found = self
            .hold_of(id)
            .map(|hold| (hold.worker, id <= hold.started_to));
        let mut ran = false;
        if let Some((worker, started)) = found {
            self.hand_back(worker, id, true);
            ran = started;
        }
        let found = self.live(id).is_some_and(|row| {
            row.requeue(ran);
            true
        });
        self.note("requeue", found.then_some(id));
        found
    }

    fn note(&mut self, action: &str, id: Option<i64>) {
        let ids = id.into_iter().collect();
        self.tables.audit.push((action.to_owned(), ids));
    }

    fn head(&self, group: &str) -> Option<&Row> {
        let is_of_it = |row: &&Row| row.group.as_deref() == Some(group);
        self.tables.queue.iter().find(is_of_it)
    }

    fn end_by_operator(&mut self, id: i64, code: &str) {
        self.end(id, "FAILED", Some(code), By::Operator);
        let leases = &mut self.tables.leases;
        for hold in leases.iter_mut().filter(|hold| hold.ids.contains(&id)) {
            hold.cuts += 1;
        }
    }

    pub fn cancel(&mut self, group: &str) -> Option<i64> {
        let id = self.head(group).map(|row| row.id);
        if let Some(id) = id {
            self.end_by_operator(id, "cancelled");
        }
        self.note("unblock", id);
        id
    }

    /// The event that is put behind its group, and when its successor may start.
    pub fn skip(&mut self, group: &str) -> Option<(Ended, i64)> {
        let head = self.head(group).filter(|row| !row.is_late());
        let available = head.map_or(0, |row| row.available.max(0));
        let id = head.map(|row| row.id);
        if let Some(id) = id {
            self.end_by_operator(id, "skipped");
        }
        self.note("unblock", id);
        id.and_then(|id| Some((self.ended(id)?, available)))
    }

    fn ended(&self, id: i64) -> Option<Ended> {
        self.tables.log.iter().find(|ended| ended.id == id).cloned()
    }

    /// The event that is replayed, if nothing stands in the way.
    pub fn replay(&mut self, id: i64, renews: bool) -> Option<Ended> {
        let original = self.ended(id).filter(|ended| {
            let is_live = self
                .tables
                .queue
                .iter()
                .any(|row| row.replay_of == Some(id));
            let is_late = ended.deadline.is_some_and(|deadline| deadline <= 0);
            !is_live && self.twin(ended.dedup.as_ref()).is_none() && (!is_late || renews)
        });
        self.note("replay", original.as_ref().map(|ended| ended.id));
        original
    }

    /// Those past their deadline, those abandoned.
    pub fn end_hopeless(&mut self) -> (Vec<i64>, Vec<i64>) {
        self.sweep(None, true);
        let is_over =
            |row: &&Row| self.hold_of(row.id).is_none() && (row.is_late() || row.is_exhausted());
        let over = self.tables.queue.iter().filter(is_over);
        let (late, rest): (Vec<&Row>, Vec<&Row>) = over.partition(|row| row.is_late());
        let ids = |rows: Vec<&Row>| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        let (expired, abandoned) = (ids(late), ids(rest));
        for id in &expired {
            self.end(*id, "FAILED", Some("expired"), By::Nobody);
        }
        for id in &abandoned {
            self.end(*id, "FAILED", Some("abandoned"), By::Nobody);
        }
        (expired, abandoned)
    }

    /// How many rows leave the log.
    pub fn clean(&mut self) -> usize {
        let before = self.tables.log.len();
        self.tables.log.retain(|ended| ended.kept_until > 0);
        before - self.tables.log.len()
    }

    pub fn pass(&mut self, hours: i64) {
        for row in &mut self.tables.queue {
            row.available -= hours;
            row.deadline = row.deadline.map(|time| time - hours);
        }
        for hold in &mut self.tables.leases {
            (hold.taken, hold.until) = (hold.taken - hours, hold.until - hours);
        }
        for ended in &mut self.tables.log {
            ended.deadline = ended.deadline.map(|time| time - hours);
            ended.kept_until -= hours;
        }
    }
}

impl Row {
    /// As it is published.
    pub fn new(id: i64, max_attempts: i32) -> Self {
        Self {
            id,
            kind: 0,
            group: None,
            dedup: None,
            attempts: 0,
            lapses: 0,
            max_attempts,
            delayed: false,
            available: 0,
            deadline: None,
            last_error: None,
            codes: Vec::new(),
            parent: None,
            replay_of: None,
        }
    }

    /// As a replay of this one.
    pub fn replay(id: i64, original: &Ended) -> Self {
        let is_late = original.deadline.is_some_and(|deadline| deadline <= 0);
        Self {
            kind: original.kind,
            group: original.group.clone(),
            dedup: original.dedup.clone(),
            deadline: original
                .deadline
                .map(|time| if is_late { RENEWED } else { time }),
            replay_of: Some(original.id),
            ..Self::new(id, original.max_attempts)
        }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|time| time <= 0)
    }

    fn is_exhausted(&self) -> bool {
        self.attempts >= self.max_attempts
    }

    /// Id, fate and attempts, as a lease tells them.
    fn handed_over(&self) -> (i64, i32, i32) {
        let fate = if self.is_late() {
            1
        } else if self.is_exhausted() {
            2
        } else {
            0
        };
        (self.id, fate, self.attempts + i32::from(fate == 0))
    }

    fn requeue(&mut self, ran: bool) {
        // An event without an attempt left does not start, wherever the lease's window ends.
        self.attempts = (self.attempts + i32::from(ran)).min(self.max_attempts);
        (self.available, self.delayed) = (self.available.min(0), false);
        self.max_attempts = self.max_attempts.max(self.attempts + 1);
    }
}

/// Who ends an event.
#[derive(Debug, Clone, Copy)]
enum By {
    /// Its worker, under this token, after an attempt or without one.
    Worker(Uuid, bool),
    Operator,
    Nobody,
}

impl By {
    fn token(self) -> Option<Uuid> {
        match self {
            Self::Worker(token, _) => Some(token),
            Self::Operator | Self::Nobody => None,
        }
    }
}

/// What a replay's passed deadline becomes, if it is given anew.
pub const RENEWED: i64 = 2;
