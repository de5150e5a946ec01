//! One target of `tidegate_job::fuzz` under libFuzzer: the one that `TIDEGATE_FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

use tidegate_job::fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TIDEGATE_FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => {
            let known: Vec<&str> = TARGETS.iter().map(|(known, _)| *known).collect();
            eprintln!("TARGET: must be {}, got {name:?}", known.join(", "));
            std::process::exit(2);
        }
    }
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET(input));
