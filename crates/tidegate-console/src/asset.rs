//! Serves the files that pages load. They are embedded, and the path of each contains a hash of its content,
//! so that browsers can cache it forever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// An embedded file.
pub(crate) struct Asset {
    /// The path below the base path.
    pub path: String,
    kind: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, kind: &'static str, bytes: &'static [u8]) -> Self {
        let hash = Sha256::digest(bytes);
        let hash = u64::from_be_bytes([0, 0, hash[0], hash[1], hash[2], hash[3], hash[4], hash[5]]);
        Self {
            path: format!("/assets/{stem}-{hash:012x}.{ending}"),
            kind,
            bytes,
        }
    }
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub(crate) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../assets/console.css");
    Asset::new("console", "css", "text/css; charset=utf-8", bytes)
});

/// The console's own script.
pub(crate) static CODE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "console",
        "js",
        SCRIPT,
        include_bytes!("../assets/console.js"),
    )
});

/// htmx, as it was released; its licence is in the same folder.
pub(crate) static HTMX: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../assets/htmx-2.0.11.min.js");
    Asset::new("htmx", "js", SCRIPT, bytes)
});

/// The icon in the browser's tab.
pub(crate) static ICON: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("../assets/icon.svg");
    Asset::new("icon", "svg", "image/svg+xml", bytes)
});

/// Serves the file of this path; 404 if there is none, for example after an update.
pub(crate) async fn serve(Path(name): Path<String>) -> Response {
    let all = [&*STYLE, &*CODE, &*HTMX, &*ICON];
    let path = format!("/assets/{name}");
    let Some(asset) = all.into_iter().find(|asset| asset.path == path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (CONTENT_TYPE, asset.kind),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, asset.bytes).into_response()
}
