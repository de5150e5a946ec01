//! Owns what a cloud adds to a program: the secrets that it keeps, tokens in place of passwords, and how a
//! function starts drains. This crate knows none. The crate of a cloud implements [`Cloud`], and the
//! program's shell installs it before any setting is read.

use std::sync::{Arc, OnceLock};

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::chain::{NextTick, StartDrain};
use crate::config::read_secret_file;
use crate::error::{Error, Result};

/// The version of a secret. It is never left to the store's own choice, because emulators of stores do not
/// agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// The valid version.
    Current,
    /// The version that a rotation under way is about to make valid. The database may know it already.
    Pending,
}

/// What a cloud gives a program. Nothing is requested before a setting names it.
pub trait Cloud: Send + Sync + 'static {
    /// Reads a version of the secret with this name; `None` when there is no such version.
    ///
    /// # Errors
    /// [`Error::Secret`] names the secret and what is wrong with it, and quotes none of its content.
    fn secret<'a>(&'a self, id: &'a str, version: Version)
    -> BoxFuture<'a, Result<Option<String>>>;

    /// Signs a token that a database accepts as the password of this user for the next 15 minutes.
    ///
    /// # Errors
    /// [`Error::Secret`] when there is nothing to sign it with.
    fn token<'a>(
        &'a self,
        host: &'a str,
        port: u16,
        user: &'a str,
    ) -> BoxFuture<'a, Result<String>>;

    /// Returns what starts drains by invoking this function: its ARN on AWS.
    fn starter(&self, function: String) -> Arc<dyn StartDrain>;

    /// Returns the schedule of this name: its ARN on AWS.
    ///
    /// # Errors
    /// [`Error::Config`], naming the setting, when it is not the name of a schedule.
    fn next_tick(&self, setting: &str, schedule: String) -> Result<Arc<dyn NextTick>>;
}

static CLOUD: OnceLock<Box<dyn Cloud>> = OnceLock::new();

/// Makes a cloud the one of this process. If the process has one already, that one stays. A program calls
/// this before it reads settings.
pub fn install(cloud: impl Cloud) {
    CLOUD.get_or_init(|| Box::new(cloud));
}

/// Returns the cloud of this process, for a setting that needs one.
///
/// # Errors
/// [`Error::Config`], naming the setting, if there is none.
pub fn cloud(setting: &str) -> Result<&'static dyn Cloud> {
    let needed = || {
        Error::Config(format!(
            "{setting} needs AWS, and this program has none: its main must call tidegate_aws::install() first, or be built \
             with the feature `aws` of tidegate-cli"
        ))
    };
    CLOUD.get().map(|cloud| &**cloud).ok_or_else(needed)
}

/// Reads the text of a secret, anew with each call.
pub type SecretReader = Box<dyn Fn() -> BoxFuture<'static, Result<String>> + Send + Sync>;

/// Returns a reader of this secret: its name in the cloud, or `file:PATH`. Nothing is read before its first
/// use.
///
/// # Errors
/// [`Error::Config`], naming the setting, if it is in a cloud and this program has none.
pub fn secret_reader(setting: &str, place: String) -> Result<SecretReader> {
    let setting = setting.to_owned();
    let Some(path) = place.strip_prefix("file:").map(str::to_owned) else {
        let (cloud, id) = (cloud(&setting)?, Arc::<str>::from(place));
        return Ok(Box::new(move || {
            let id = id.clone();
            async move { current(cloud, &id).await }.boxed()
        }));
    };
    Ok(Box::new(move || {
        let read = read_secret_file(&path);
        let read = read.map_err(|why| Error::Secret(format!("{setting}: {why}")));
        ready(read).boxed()
    }))
}

/// Reads the valid version of a secret, which always exists.
async fn current(cloud: &dyn Cloud, id: &str) -> Result<String> {
    let text = cloud.secret(id, Version::Current).await?;
    text.ok_or_else(|| Error::Secret(format!("{id}: there is no such secret")))
}
