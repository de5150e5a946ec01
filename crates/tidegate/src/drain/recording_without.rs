//! Replaces `recording` in builds without OpenTelemetry: a drain records nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Hooks;
use super::options::DrainOptions;
use super::report::DrainReport;
use super::settle::Settled;
use crate::context::Context;
use crate::error::Error;
use crate::figures::Figures;
use crate::handler::HandlerResult;
use crate::lease::LeasedEvent;
use crate::otel::Spool;
use crate::outcome::HandlerEnd;

/// Never exists.
pub(super) struct Recording {
    never: Never,
    pub(super) left: Option<BTreeMap<String, u64>>,
}

enum Never {}

impl Recording {
    pub(super) fn begin(_: &DrainOptions, _: &mut Hooks) -> Option<Self> {
        None
    }

    pub(super) fn reserve() -> Duration {
        Duration::ZERO
    }

    pub(super) fn takes_metrics(&self) -> bool {
        match self.never {}
    }

    pub(super) fn spool(&self) -> Option<Spool> {
        match self.never {}
    }

    pub(super) fn place(&self, _: &mut Context) {
        match self.never {}
    }

    pub(super) fn leased(&self, _: Instant, _: usize) {
        match self.never {}
    }

    pub(super) fn written(&self, _: Instant, _: usize) {
        match self.never {}
    }

    pub(super) fn attempted(&self, _: &Context, _: &Settled, _: &[HandlerEnd], _: Duration) {
        match self.never {}
    }

    pub(super) fn given_up(&self, _: &LeasedEvent, _: &str) {
        match self.never {}
    }

    #[expect(clippy::unused_async, reason = "as with OpenTelemetry built in")]
    pub(super) async fn ended(
        self,
        _: &DrainReport,
        _: Option<&Error>,
        _: &Figures,
        _: Duration,
    ) -> u64 {
        match self.never {}
    }
}

pub(super) async fn ran<T>(_: Option<Spool>, _: &Context, work: impl Future<Output = T>) -> T {
    work.await
}

/// Never exists, because no handler is recorded.
pub(super) enum Above {}

pub(super) fn above(_: &Context) -> Option<Above> {
    None
}

#[expect(clippy::unused_async, reason = "as with OpenTelemetry built in")]
pub(super) async fn handled(
    above: Above,
    _: (&str, Option<&str>),
    _: impl Future<Output = HandlerResult>,
) -> HandlerResult {
    match above {}
}
