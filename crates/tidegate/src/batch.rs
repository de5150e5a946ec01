//! Owns calls that events share. Each event's handler joins the call that is being gathered, and continues
//! with its own answer. The batch decides nothing about an event; its handler still returns the verdict.
//!
//! While several events share a call, a failure of the whole call is charged to none of them. Each of them is
//! retried at no cost, and shares its next call with a quarter as many events, and finally with none. So an
//! event that spoils its calls costs its neighbours a few calls, but no attempt.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use crate::context::Context;
use crate::handler::HandlerError;

/// The answer of a call: one result for each item, in the order of the items, or one error for the whole
/// call.
type Answers<R> = Result<Vec<Result<R, HandlerError>>, HandlerError>;

type Call<T, R> = dyn Fn(Vec<T>) -> BoxFuture<'static, Answers<R>> + Send + Sync;

/// One call for many events, for an API that takes many items at once. Each event keeps its own handler, its
/// own answer and its own verdict. Attempts, limits, order and the log are the same as without a batch.
///
/// The kind's [`Policy::batch`](crate::Policy::batch) sets how many events share a call, and how long the
/// first waits for the others. If the policy sets no batch, and in a drain with concurrency 1, each event has
/// its own call. The wait counts towards the handler's time limit. Events of one group, or of different
/// kinds, never share a call.
///
/// A call fails as a whole if it returns an error, panics, does not answer in time, or does not return one
/// answer for each item. While several events share the call, this costs none of them an attempt: each is
/// retried with a quarter as many events, and finally alone. Return an answer for each item if you can. If a
/// handler is stopped, or its event is taken back, after the call has started, its item stays in the call and
/// the others continue.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Batch, Context, Dispatch, Done, HandlerError, Handlers, Policy};
///
/// tidegate::events! {
///     pub enum Search {
///         Changed(String) = "document_changed",
///     }
/// }
///
/// struct Indexing {
///     index: Batch<String, u64>,
/// }
///
/// impl Indexing {
///     fn new() -> Self {
///         Self {
///             index: Batch::new(|documents: Vec<String>| async move {
///                 // One request for all of them, and one answer for each.
///                 let sizes = documents.iter().map(|text| match text.len() {
///                     0 => Err(HandlerError::reject("empty", "there is nothing to index")),
///                     size => Ok(size as u64),
///                 });
///                 Ok(sizes.collect())
///             }),
///         }
///     }
/// }
///
/// impl Dispatch for Indexing {
///     type Event = Search;
///
///     fn handlers<'a>(&'a self, event: &'a Search, ctx: &'a Context) -> Handlers<'a> {
///         match event {
///             Search::Changed(text) => Handlers::one("index", async move {
///                 let size = self.index.call(ctx, text.clone()).await?;
///                 Done::with(&size)
///             }),
///         }
///     }
/// }
///
/// // The program also sets this policy: up to 100 events share a call, and none waits for it for longer than
/// // 200 ms.
/// let policy = Policy::default().batch(100, Duration::from_millis(200));
/// ```
pub struct Batch<T, R> {
    shared: Arc<Shared<T, R>>,
}

struct Shared<T, R> {
    call: Box<Call<T, R>>,
    limits: CallLimits<T>,
    gathering: Mutex<Gathering<T, R>>,
}

/// What a call may have at most, whatever the policy says.
struct CallLimits<T> {
    items: usize,
    bytes: usize,
    /// Counts the bytes of an item.
    size: Box<dyn Fn(&T) -> usize + Send + Sync>,
}

/// Calls that have not started.
struct Gathering<T, R> {
    calls: HashMap<Key, Gathered<T, R>>,
    made: u64,
}

/// Identifies the events that may share a call.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    run: Uuid,
    kind: String,
    most: usize,
}

struct Gathered<T, R> {
    number: u64,
    bytes: usize,
    members: Vec<Member<T, R>>,
    timer: AbortHandle,
}

struct Member<T, R> {
    event: i64,
    item: T,
    /// When its handler will be stopped, and whether that is the end of the run.
    end: (Instant, bool),
    begun: oneshot::Sender<()>,
    answer: oneshot::Sender<Result<R, HandlerError>>,
}

impl<T: Send + 'static, R: Send + 'static> Batch<T, R> {
    /// Creates a batch. `call` receives up to as many items as the kind's policy says, in the order in which
    /// their events were published. It returns one answer for each item, in the same order.
    pub fn new<F, A>(call: F) -> Self
    where
        F: Fn(Vec<T>) -> A + Send + Sync + 'static,
        A: Future<Output = Answers<R>> + Send + 'static,
    {
        Self::limited(usize::MAX, usize::MAX, |_| 0, call)
    }

    /// Like [`Batch::new`], for an API with limits: a call has no more than so many items, and no more than
    /// so many bytes, as `size` counts them. An item that is larger has a call of its own.
    pub fn limited<F, A>(
        items: usize,
        bytes: usize,
        size: impl Fn(&T) -> usize + Send + Sync + 'static,
        call: F,
    ) -> Self
    where
        F: Fn(Vec<T>) -> A + Send + Sync + 'static,
        A: Future<Output = Answers<R>> + Send + 'static,
    {
        let gathering = Gathering {
            calls: HashMap::new(),
            made: 0,
        };
        let shared = Shared {
            call: Box::new(move |items| call(items).boxed()),
            limits: CallLimits {
                items,
                bytes,
                size: Box::new(size),
            },
            gathering: Mutex::new(gathering),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Adds this event's item to a call that the event may share, and returns the answer for the item.
    ///
    /// # Errors
    /// The item's own verdict. If a shared call failed as a whole, a retry that costs no attempt.
    pub async fn call(&self, ctx: &Context, item: T) -> Result<R, HandlerError> {
        let sharing = ctx.sharing();
        let most = sharing.most.min(self.shared.limits.items);
        if most == 1 {
            let mut answers = checked(1, (self.shared.call)(vec![item]).await)?;
            return answers.pop().unwrap_or_else(|| Err(miscounted(1, 0)));
        }
        let ((begun, begins), (answer, answers)) = (oneshot::channel(), oneshot::channel());
        let key = Key {
            run: ctx.run(),
            kind: ctx.event().kind.clone(),
            most,
        };
        let member = Member {
            event: ctx.event_id(),
            item,
            end: ctx.end(),
            begun,
            answer,
        };
        self.shared.join(key, sharing.within, member);
        tokio::select! {
            biased;
            _ = begins => {}
            () = ctx.cancelled() => {
                return Err(HandlerError::retry("cancelled", "the event was taken away before the call of its batch"));
            }
        }
        let gone = || {
            HandlerError::retry(
                "batch",
                "the call that the event shared with others was given up",
            )
            .blameless()
        };
        answers.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl<T: Send + 'static, R: Send + 'static> Shared<T, R> {
    fn gathering(&self) -> MutexGuard<'_, Gathering<T, R>> {
        self.gathering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item to the call that is being gathered. A full call starts at once, and one that has no room
    /// for the item starts before it. The first item starts a timer for a call that does not fill up.
    fn join(self: &Arc<Self>, key: Key, within: Duration, member: Member<T, R>) {
        let (most, bytes) = (key.most, (self.limits.size)(&member.item));
        let mut gathering = self.gathering();
        if let Entry::Occupied(gathered) = gathering.calls.entry(key.clone())
            && gathered.get().bytes.saturating_add(bytes) > self.limits.bytes
        {
            self.begin_now(gathered.remove());
        }
        gathering.made += 1;
        let number = gathering.made;
        let mut gathered = match gathering.calls.entry(key) {
            Entry::Occupied(gathered) => gathered,
            Entry::Vacant(first) => {
                // Leaves part of the handler's time for the call itself.
                let left = member.end.0.saturating_duration_since(Instant::now());
                let timer =
                    self.clone()
                        .begin_after(within.min(left / 2), first.key().clone(), number);
                first.insert_entry(Gathered {
                    number,
                    bytes: 0,
                    members: Vec::new(),
                    timer: tokio::spawn(timer).abort_handle(),
                })
            }
        };
        gathered.get_mut().members.push(member);
        gathered.get_mut().bytes += bytes;
        if gathered.get().members.len() >= most {
            self.begin_now(gathered.remove());
        }
    }

    fn begin_now(self: &Arc<Self>, full: Gathered<T, R>) {
        full.timer.abort();
        tokio::spawn(self.clone().begin(full.members));
    }

    async fn begin_after(self: Arc<Self>, wait: Duration, key: Key, number: u64) {
        tokio::time::sleep(wait).await;
        let due = match self.gathering().calls.entry(key) {
            Entry::Occupied(gathered) if gathered.get().number == number => gathered.remove(),
            _ => return,
        };
        self.begin(due.members).await;
    }

    /// Makes the call and passes each answer on. The call is dropped when no handler waits for it any more.
    async fn begin(self: Arc<Self>, mut members: Vec<Member<T, R>>) {
        members.retain(|member| !member.answer.is_closed());
        members.sort_unstable_by_key(|member| member.event);
        let Some((deadline, is_cut)) = members.iter().map(|member| member.end).min() else {
            return;
        };
        let (mut items, mut waiting) = (Vec::new(), Vec::new());
        for member in members {
            items.push(member.item);
            waiting.push(member.answer);
            // A receiver that is gone has left the call.
            let _ = member.begun.send(());
        }
        let count = waiting.len();
        let span = tracing::info_span!("batch", events = count);
        let answered = tokio::select! {
            biased;
            answered = self.answered(items, deadline, is_cut).instrument(span) => answered,
            _ = join_all(waiting.iter_mut().map(oneshot::Sender::closed)) => return,
        };
        match answered {
            Ok(answers) => {
                for (waits, answer) in waiting.into_iter().zip(answers) {
                    let _ = waits.send(answer);
                }
            }
            Err(error) => {
                // The message may quote what an event holds.
                let code = error.faults().first().map_or("", |fault| &fault.code);
                tracing::warn!(
                    events = count,
                    code,
                    "a call that events share failed as a whole"
                );
                for (index, waits) in waiting.into_iter().enumerate() {
                    let _ = waits.send(Err(error.clone().of_call(count, index == 0)));
                }
            }
        }
    }

    /// Returns answers for all items. For one item, the limit is its handler's own. A call of several items
    /// ends before the first of their handlers reaches its limit, because that would be charged to the event.
    async fn answered(&self, items: Vec<T>, deadline: Instant, is_cut: bool) -> Answers<R> {
        let count = items.len();
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = if count == 1 { left } else { left.mul_f64(0.9) };
        // The future is created inside, so a panic during its creation also counts as a panic of the call.
        let call = AssertUnwindSafe(async { (self.call)(items).await }).catch_unwind();
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(answers)) => checked(count, answers),
            Ok(Err(panic)) => Err(HandlerError::panicked(&*panic)),
            Err(_) => Err(HandlerError::timed_out(limit, is_cut)),
        }
    }
}

/// Checks that there is one answer for each item.
fn checked<R>(items: usize, answers: Answers<R>) -> Answers<R> {
    match answers {
        Ok(answers) if answers.len() != items => Err(miscounted(items, answers.len())),
        answers => answers,
    }
}

fn miscounted(items: usize, answers: usize) -> HandlerError {
    let why = format!("the call must answer for each of its {items} items, got {answers} answers");
    HandlerError::retry("batch", why)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::*;
    use crate::context::{Written, WrittenUpTo};
    use crate::policies::BatchLimits;
    use tidegate_core::lease::LeasedEvent;

    const LIMIT: Duration = Duration::from_secs(10);

    fn context(id: i64, most: usize) -> Context {
        let (_, progress) = watch::channel(Written::default());
        let flushed = WrittenUpTo {
            ahead: None,
            after: 0,
            progress,
        };
        let sharing = BatchLimits {
            most,
            within: Duration::from_secs(1),
        };
        let event = LeasedEvent::sample(id, None);
        let mut ctx = Context::new(event, None, flushed, Instant::now() + LIMIT);
        ctx.share_calls(sharing, Uuid::nil());
        ctx
    }

    /// Answers each item with the number of items in its call.
    fn counting() -> Batch<i64, usize> {
        Batch::new(|items: Vec<i64>| async move {
            let count = items.len();
            Ok(items.iter().map(|_| Ok(count)).collect())
        })
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_away_before_its_call_is_not_in_it() {
        let (batch, gone, stays) = (counting(), context(1, 10), context(2, 10));
        let taken = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            gone.note_taken_away();
        };
        let (left, (), stayed) = tokio::join!(batch.call(&gone, 1), taken, batch.call(&stays, 2));
        assert_eq!(left.unwrap_err().faults()[0].code, "cancelled");
        assert_eq!(stayed, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_no_more_bytes_than_it_may_have_unless_one_item_is_larger() {
        let count =
            |items: Vec<usize>| async move { Ok(items.iter().map(|_| Ok(items.len())).collect()) };
        let batch = Batch::<usize, usize>::limited(3, 10, |item| *item, count);
        let contexts: Vec<Context> = (1..=10).map(|id| context(id, 100)).collect();
        let calls = contexts.iter().zip([4, 6, 1, 50, 5, 5, 1, 1, 1, 1]);
        let answers = join_all(calls.map(|(ctx, bytes)| batch.call(ctx, bytes))).await;
        let together: Vec<usize> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(together, [2, 2, 1, 1, 2, 2, 3, 3, 3, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_cut_does_not_end_the_call_and_the_last_one_does() {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (begun.clone(), ended.clone());
        let batch = Batch::new(move |items: Vec<i64>| {
            let (begun, ended) = counts.clone();
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(5)).await;
                ended.fetch_add(1, Ordering::SeqCst);
                Ok(items.iter().map(|_| Ok(())).collect())
            }
        });
        let soon = Duration::from_secs(2);
        let contexts = [1, 2, 3, 4].map(|id| context(id, 2));
        let cut = tokio::time::timeout(soon, batch.call(&contexts[0], 1));
        let (cut, whole) = tokio::join!(cut, batch.call(&contexts[1], 2));
        assert!(cut.is_err());
        assert_eq!(whole, Ok(()));
        let cut = |of: usize| tokio::time::timeout(soon, batch.call(&contexts[of], 0));
        let both = tokio::join!(cut(2), cut(3));
        assert!(both.0.is_err() && both.1.is_err());
        tokio::time::sleep(LIMIT).await;
        let counted = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert_eq!((counted(&begun), counted(&ended)), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_fails_is_nobodys_fault_while_several_share_it_and_its_own_events_else() {
        let batch =
            Batch::<i64, ()>::new(|_| async { Err(HandlerError::reject("no", "none of it")) });
        let contexts: Vec<Context> = (1..=8).map(|id| context(id, 8)).collect();
        let calls = contexts.iter().map(|ctx| batch.call(ctx, 0));
        for failed in join_all(calls).await {
            let error = failed.unwrap_err();
            assert!(error.blameless && !error.is_rejection(), "{error}");
            assert_eq!(error.delay(), Some(Duration::ZERO));
            assert_eq!(error.shared.unwrap().together, Some(2));
            let message = "retry: no: of a call that 8 events shared: none of it";
            assert_eq!(error.to_string(), message);
        }
        // One ends alone because its wait is over, the other because its call is full.
        for most in [8, 1] {
            let alone = batch.call(&context(9, most), 0).await.unwrap_err();
            assert!(alone.is_rejection() && !alone.blameless && alone.shared.is_none());
        }
    }
}
