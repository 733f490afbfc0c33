//! The outcomes as a table.

use highwater_tracking::Recording;
use highwater_tracking::table::{Table, bytes, plain};

use super::outcome::{Outcome, with_settings};

/// The recorded run and its pools.
pub(super) fn heading(recording: &Recording) -> String {
    let facts = recording.facts();
    let more: Vec<String> =
        facts.more.iter().map(|(name, value)| plain(&format!("{name} {value}"))).collect();
    let mut text = format!("{}: {} events\n", plain(&facts.program), recording.events().len());
    if !more.is_empty() {
        text.push_str(&format!("{}\n", more.join(", ")));
    }
    for pool in recording.summary().map_or(&[][..], |summary| &summary.report.pools) {
        text.push_str(&format!(
            "{}: peak {} in use, {} reserved\n",
            plain(&pool.name),
            bytes(pool.peak_in_use),
            bytes(pool.peak_reserved)
        ));
    }
    format!("{text}\n")
}

/// The length of names that are complete. Longer ones have many rules.
const LONGEST_NAME: usize = 64;

/// One row per outcome, with its change against the first, then the failures.
pub(super) fn table(outcomes: &[Outcome], wide: bool) -> String {
    let heading = ["what if", "in use", "reserved", "change", "at end", "smallest pool", "change"];
    // The names differ in the middle.
    let mut table =
        Table::new(&heading).omitting(&["change", "change", "at end"]).keeping_names(LONGEST_NAME).wide(wide);
    let base = outcomes.first();
    for outcome in outcomes {
        let column = |figure: fn(&Outcome) -> Option<u64>| {
            let (now, before) = (figure(outcome), base.and_then(figure));
            [now.map_or_else(String::new, bytes), change(before, now)]
        };
        let [in_use, _] = column(|outcome| outcome.peak_in_use_bytes);
        let [reserved, reserved_change] = column(|outcome| outcome.peak_reserved_bytes);
        let [smallest, smallest_change] = column(|outcome| outcome.smallest_pool_bytes);
        let [at_end, _] = column(|outcome| outcome.end_reserved_bytes);
        let in_use = if outcome.failure.is_some() { "fails".to_owned() } else { in_use };
        table.line(&outcome.what, [in_use, reserved, reserved_change, at_end, smallest, smallest_change]);
    }
    let least = match base.map_or(0, |base| base.peak_live_bytes) {
        0 => "the run used no memory".to_owned(),
        least => format!("lower bound of every pool: {}", bytes(least)),
    };
    let failures = outcomes
        .iter()
        .filter_map(|outcome| Some(format!("\n{}: {}\n", outcome.what, plain(outcome.failure.as_ref()?))));
    let best = if base.is_some_and(|base| base.peak_live_bytes > 0) {
        best_settings(outcomes)
    } else {
        String::new()
    };
    format!("{table}\n{least}\n{best}{}", failures.collect::<String>())
}

/// The settings of PyTorch's allocator that reserve least, in a sentence; empty if fewer than two were tried.
fn best_settings(outcomes: &[Outcome]) -> String {
    let best = outcomes.iter().find(|outcome| outcome.is_best_alloc_conf);
    let (Some(best), Some(base)) = (best, with_settings(outcomes).next()) else { return String::new() };
    let name = |outcome: &Outcome| match outcome.alloc_conf.as_deref() {
        None | Some("") => "the defaults".to_owned(),
        Some(settings) => settings.to_owned(),
    };
    let reserved = |outcome: &Outcome| bytes(outcome.peak_reserved_bytes.unwrap_or(0));
    if best.what == base.what {
        return format!("no other settings of PyTorch's allocator reserve less than {}\n", name(base));
    }
    let saved = best.saved_at_end.filter(|&saved| saved > 0.0).map(|saved| {
        format!(
            ", and remove {:.1} % of the difference between reserved and used memory at the end",
            saved * 100.0
        )
    });
    format!(
        "best settings of PyTorch's allocator: {}\nThey reserve {} instead of {} with {}{}.\n",
        name(best),
        reserved(best),
        reserved(base),
        name(base),
        saved.unwrap_or_default()
    )
}

/// The change in percent; empty if there is nothing to compare.
fn change(before: Option<u64>, after: Option<u64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before == after => "-".to_owned(),
        (Some(before), Some(after)) if before > 0 => {
            format!("{:+.1} %", (after as f64 / before as f64 - 1.0) * 100.0)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_in_percent_with_their_sign() {
        let pairs = [(100, 150, "+50.0 %"), (200, 199, "-0.5 %"), (5, 5, "-"), (0, 5, "")];
        for (before, after, text) in pairs {
            assert_eq!(change(Some(before), Some(after)), text);
        }
        assert_eq!((change(None, Some(1)), change(Some(1), None)), (String::new(), String::new()));
    }
}
