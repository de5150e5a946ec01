//! Owns the processes of a run. It starts workers and publishers, kills, freezes and thaws them, and ensures
//! that none outlives the run.

use std::fs::File;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::actor::{Publisher, ROLE, Role, Worker};
use crate::journal::Record;
use crate::world::World;

/// How long an actor may take to end: its longest drain and some time for the rest.
const FAREWELL: Duration = Duration::from_secs(40);

/// A running actor.
pub struct Actor {
    pub name: String,
    child: Child,
    /// Open as long as the actor is wanted.
    hold: Option<ChildStdin>,
    frozen: bool,
}

/// All actors of a run.
#[derive(Default)]
pub struct Fleet {
    pub workers: Vec<Actor>,
    pub publishers: Vec<Actor>,
    started: u32,
    /// Names of workers that ended without being asked.
    ended: Vec<String>,
    /// Environment variables for new workers.
    pub variables: Vec<(String, String)>,
}

/// The worker that most experiments use.
pub fn worker(world: &World) -> Worker {
    Worker {
        url: world.url.clone(),
        journal: std::path::PathBuf::new(),
        lease_ms: 1000,
        handler_ms: 900,
        concurrency: 4,
        batch: 50,
        budget_ms: 3000,
        max_events: None,
        once: false,
        memory_mb: None,
    }
}

impl Fleet {
    /// Starts a worker under its own name. Returns its index among the workers.
    pub fn start_worker(&mut self, world: &World, worker: Worker) -> usize {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let role = Role::Worker(Worker {
            journal: world.journal_path(&name),
            // The name identifies its leases.
            url: worker.url + "?application_name=" + &name,
            ..worker
        });
        let actor = Actor::start(world, name, &role, &self.variables);
        self.workers.push(actor);
        self.workers.len() - 1
    }

    pub fn start_publisher(&mut self, world: &World, publisher: Publisher) -> usize {
        self.started += 1;
        let name = format!("publisher-{}", self.started);
        let role = Role::Publisher(Publisher {
            journal: world.journal_path(&name),
            name: name.clone(),
            ..publisher
        });
        self.publishers.push(Actor::start(world, name, &role, &[]));
        self.publishers.len() - 1
    }

    /// Replaces each worker that has ended, and lets the leases of the ended ones expire: late breaking of
    /// leases is not tested, and no machine can be too slow for it. Returns how many workers have ended in
    /// total.
    pub async fn tend(&mut self, world: &World, template: &Worker) -> usize {
        for place in 0..self.workers.len() {
            if self.workers[place].has_ended() {
                self.start_worker(world, template.clone());
                let process = self.workers.swap_remove(place).name.clone();
                world.journal.write(Record::Killed {
                    process: process.clone(),
                });
                self.ended.push(process);
            }
        }
        self.end_leases(world).await;
        self.ended.len()
    }

    /// Kills a worker, and lets its leases expire.
    pub async fn kill_worker(&mut self, world: &World, place: usize) {
        let mut actor = self.workers.swap_remove(place);
        actor.kill(world);
        // Until its sessions are gone, it may still lease something.
        let sessions = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'",
            actor.name
        );
        world.comes_to(&sessions, 0).await;
        self.ended.push(actor.name.clone());
        self.end_leases(world).await;
    }

    /// Lets the leases of a worker expire, as if it had sent no renewal.
    pub async fn let_leases_expire(&mut self, world: &World, place: usize) {
        self.ended.push(self.workers[place].name.clone());
        self.end_leases(world).await;
    }

    async fn end_leases(&self, world: &World) {
        // The statement of a dead worker may be executed after its death.
        let end = "UPDATE tidegate.lease SET expires_at = clock_timestamp() - interval '1 second'
                    WHERE expires_at > clock_timestamp()
                      AND token IN (SELECT token FROM torture.taken WHERE by = ANY ($1))";
        world
            .client()
            .await
            .execute(end, &[&self.ended])
            .await
            .unwrap();
    }

    /// Tends to the workers until all events have ended. Returns false if they do not end in time.
    pub async fn tend_to_the_end(&mut self, world: &World, template: &Worker) -> bool {
        let deadline = Instant::now() + world.patience;
        while Instant::now() < deadline {
            self.tend(world, template).await;
            if world
                .number("SELECT count(*) FROM tidegate.event_queue")
                .await
                == 0
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }

    /// Asks all actors to end, and kills those that do not.
    pub fn finish(&mut self, world: &World) {
        for actor in self.workers.iter_mut().chain(&mut self.publishers) {
            actor.thaw(world);
            actor.hold = None;
        }
        self.wait(world);
    }

    /// Waits for all actors to end. Records and kills those that do not.
    pub fn wait(&mut self, world: &World) {
        for mut actor in self.workers.drain(..).chain(self.publishers.drain(..)) {
            if !actor.ends() {
                let process = actor.name.clone();
                world.journal.write(Record::Straggled { process });
            }
        }
    }

    /// Ends the publishers, each after its current publish.
    pub fn finish_publishers(&mut self, world: &World) {
        for actor in &mut self.publishers {
            actor.hold = None;
        }
        let mut publishers = Self {
            publishers: std::mem::take(&mut self.publishers),
            ..Self::default()
        };
        publishers.wait(world);
    }
}

impl Actor {
    fn start(world: &World, name: String, role: &Role, variables: &[(String, String)]) -> Self {
        let log = File::create(world.log_path(&name)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, serde_json::to_string(role).unwrap())
            .env("RUST_BACKTRACE", "0")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            name,
            hold: child.stdin.take(),
            child,
            frozen: false,
        }
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        // The process may already be gone.
        let _ = kill_process(Pid::from_raw(id).unwrap(), signal);
    }

    /// kill -9.
    pub fn kill(&mut self, world: &World) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
        world.journal.write(Record::Killed {
            process: self.name.clone(),
        });
    }

    pub fn freeze(&mut self, world: &World) {
        self.frozen = true;
        self.signal(Signal::STOP);
        world.journal.write(Record::Froze {
            process: self.name.clone(),
        });
    }

    /// Thaws it, even if it froze itself.
    pub fn thaw(&mut self, world: &World) {
        if self.frozen {
            world.journal.write(Record::Thawed {
                process: self.name.clone(),
            });
        }
        self.frozen = false;
        self.signal(Signal::CONT);
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end. Returns false if it does not end.
    fn ends(&mut self) -> bool {
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline {
            if self.has_ended() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
