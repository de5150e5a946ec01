//! Owns the handlers of the targets that are declared in a database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate::{
    Context, Database, DecodeError, Dispatch, Error, Event, HandlerError, Handlers, Lookup,
};
use tidegate_core::queue::{self, DeclaredTarget, Targets};
use tidegate_targets::{Address, Expected, Target};

/// An event of a kind that a target handles. Its payload is passed on as it is.
pub struct Passed {
    kind: &'static str,
    payload: Box<RawValue>,
}

impl Passed {
    /// Creates an event of a kind.
    pub fn new(kind: &str, payload: Box<RawValue>) -> Self {
        let kind = interned(kind);
        Self { kind, payload }
    }
}

impl Event for Passed {
    /// None: the kinds are known only when a run begins.
    const KINDS: &'static [&'static str] = &[];

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn decode(kind: &str, payload: Option<&[u8]>) -> Result<Self, DecodeError> {
        let kind = known(kind).ok_or_else(|| DecodeError::UnknownKind(kind.to_owned()))?;
        let text = payload.unwrap_or(b"null");
        let payload = serde_json::from_slice(text);
        let payload = payload.map_err(|error| DecodeError::payload(kind, text, &error))?;
        Ok(Self { kind, payload })
    }

    fn encode(&self) -> Result<Box<RawValue>, serde_json::Error> {
        Ok(self.payload.clone())
    }
}

/// The names of all kinds and targets that this process has seen declared. They live as long as the process,
/// because the engine's names do; a declaration that changes adds its new ones.
static NAMES: RwLock<BTreeSet<&'static str>> = RwLock::new(BTreeSet::new());

fn known(name: &str) -> Option<&'static str> {
    let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    names.get(name).copied()
}

fn interned(name: &str) -> &'static str {
    if let Some(name) = known(name) {
        return name;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(name) {
        return name;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

/// The most targets that are kept with their connections, for all databases of a process.
const KEPT: usize = 1000;

/// The targets of one database, and which kinds go to them.
#[derive(Default)]
pub struct Relay {
    kinds: BTreeMap<&'static str, Vec<Target>>,
    /// The targets that can be called, with what is declared of their calls.
    targets: BTreeMap<String, (Target, Expected)>,
    /// Why the others cannot.
    left_out: Vec<String>,
    shared: Arc<RelayShared>,
}

/// What all runs of a process share.
#[derive(Default)]
struct RelayShared {
    /// The hosts of HTTPS targets that this process may call; `None` for any.
    hosts: Option<Vec<String>>,
    /// The targets by name and address, so that one that is still declared keeps its connections.
    built: Mutex<HashMap<(String, String), Target>>,
}

impl Relay {
    /// Creates a relay that knows no target yet.
    pub fn new(lookup: Lookup<'_>) -> Self {
        let hosts = lookup("TIDEGATE_TARGET_HOSTS");
        let hosts = hosts.map(|list| list.split(',').map(|host| host.trim().to_owned()).collect());
        let built = Mutex::default();
        let shared = Arc::new(RelayShared { hosts, built });
        Self {
            shared,
            ..Self::default()
        }
    }

    /// Returns the relay for what is declared. A target that this process cannot call is left out, and so are
    /// its kinds: their events wait.
    #[must_use]
    pub fn with(&self, declared: &Targets) -> Self {
        let (mut targets, mut left_out) = (BTreeMap::new(), Vec::new());
        for (name, target) in &declared.targets {
            match self.shared.target(name, target, batches(declared, name)) {
                Ok(target) => {
                    targets.insert(name.clone(), (target, expected(declared, name)));
                }
                Err(error) => {
                    tracing::warn!(target.name = name, %error, "its events wait");
                    left_out.push(error.to_string());
                }
            }
        }
        let mut kinds = BTreeMap::new();
        for (kind, of) in declared
            .kinds
            .iter()
            .filter(|(_, of)| !of.targets.is_empty())
        {
            let named = of
                .targets
                .iter()
                .map(|name| targets.get(name).map(|(target, _)| target.clone()));
            if let Some(named) = named.collect::<Option<Vec<Target>>>() {
                kinds.insert(interned(kind), named);
            }
        }
        let shared = self.shared.clone();
        Self {
            kinds,
            targets,
            left_out,
            shared,
        }
    }
}

/// Whether events of a target may share calls.
fn batches(declared: &Targets, target: &str) -> bool {
    let mut kinds = declared.kinds.values();
    kinds.any(|kind| {
        let batch = json!(kind.policy)["batch"].as_u64();
        kind.targets.iter().any(|name| name == target) && batch.is_some_and(|batch| batch > 1)
    })
}

/// Returns what is declared of the calls of a target: the shortest time limit of its kinds, and how many
/// calls the events of its limit are at most, if they share calls as they may.
fn expected(declared: &Targets, target: &str) -> Expected {
    let kinds = declared.kinds.values();
    let of_target = kinds.filter(|kind| kind.targets.iter().any(|name| name == target));
    let policies: Vec<Value> = of_target.map(|kind| json!(kind.policy)).collect();
    let least = |field: &str| {
        policies
            .iter()
            .filter_map(|policy| policy[field].as_u64())
            .min()
    };
    let batch = least("batch").and_then(|batch| u32::try_from(batch).ok());
    let limit = declared.targets.get(target).and_then(|target| target.limit);
    Expected {
        timeout: least("handler_timeout_ms").map(Duration::from_millis),
        calls: limit.map(|limit| limit.div_ceil(batch.unwrap_or(1).max(1))),
    }
}

impl RelayShared {
    fn target(
        &self,
        name: &str,
        declared: &DeclaredTarget,
        batches: bool,
    ) -> Result<Target, Error> {
        let key = (name.to_owned(), format!("{batches} {}", declared.address));
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = built.get(&key) {
            return Ok(target.clone());
        }
        let mut address: Address = serde_json::from_value(declared.address.clone())
            .map_err(|error| Error::Config(format!("{name}: {error}")))?;
        if let Address::Https(at) = &mut address {
            at.batches = batches;
        }
        if let (Some(hosts), Some(host)) = (&self.hosts, address.https_host())
            && !hosts.contains(&host)
        {
            let must = "must have a host that TIDEGATE_TARGET_HOSTS lists";
            return Err(Error::Config(format!("{name}.https: {must}, got {host:?}")));
        }
        let target = Target::new(interned(name), address)?;
        if built.len() >= KEPT {
            built.clear();
        }
        built.insert(key, target.clone());
        Ok(target)
    }
}

impl Dispatch for Relay {
    type Event = Passed;

    fn handlers<'a>(&'a self, event: &'a Passed, ctx: &'a Context) -> Handlers<'a> {
        let targets = self.kinds.get(event.kind).into_iter().flatten();
        let handlers = targets.fold(None, |all: Option<Handlers<'a>>, target| {
            let (name, call) = (target.name(), target.send(ctx, event));
            let all = match all {
                None => Handlers::one(name, call),
                Some(all) => all.and(name, call),
            };
            Some(all.calls(name))
        });
        // A drain leases no event of another kind.
        let none = || HandlerError::unavailable("no_target", "no target is declared for this kind");
        handlers.unwrap_or_else(|| Handlers::one("none", async move { Err(none()) }))
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.kinds.keys().copied().collect()
    }

    fn examine(&self) -> BoxFuture<'_, Vec<String>> {
        let looks = self.targets.values();
        let looks = looks.map(|(target, expected)| target.examine(*expected));
        let looks: Vec<_> = looks.collect();
        async move {
            let found = join_all(looks).await.into_iter().flatten();
            self.left_out.iter().cloned().chain(found).collect()
        }
        .boxed()
    }

    fn for_run(self: Arc<Self>, database: &Database) -> BoxFuture<'_, Result<Arc<Self>, Error>> {
        async move {
            // Closed before the drain opens its own: a login may have few connections.
            let client = database.connect().await?;
            let declared = queue::targets(&client).await?;
            drop(client);
            Ok(Arc::new(self.with(&declared)))
        }
        .boxed()
    }
}
