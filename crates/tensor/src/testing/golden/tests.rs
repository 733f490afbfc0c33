use super::*;
use crate::device::DeviceProfile;
use crate::predict::DryRunOptions;
use crate::tensor::Tensor;
use bfc_core::Environment;

/// Returns the report of a small run, with another op if `more` is set.
fn report(rows: usize, more: bool) -> Report {
    let options = DryRunOptions::new(DeviceProfile::this_machine()).environment(Environment::default());
    let run = options.run(|device| {
        let x = Tensor::zeros(device, [rows, 64])?.requiring_grad()?;
        let y = if more { x.relu()? } else { x.neg()? };
        y.sum_all()?.backward().map(drop)
    });
    run.unwrap().report
}

const FILE: &str = "\
# Bytes by op. HIGHWATER_UPDATE_GOLDEN=1 updates this file.
op            calls  total  high_water  live  temporary  output  persistent
neg               1    256         256     0          0     256           0
zeros             1    256         256     0          0     256           0
";

#[test]
fn the_file_is_a_table_with_every_figure_to_the_byte() {
    let text = text(&report(1, false));
    let mut lines = text.lines();
    let expected: Vec<&str> = FILE.lines().collect();
    assert_eq!(lines.next(), Some(expected[0]));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines.next().map(words), Some(words(expected[1])));
    for row in &expected[2..] {
        assert!(text.lines().any(|line| words(line) == words(row)), "{row} is not in\n{text}");
    }
    assert!(text.contains("\nneg:backward "), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("(pool)  peak_in_use ") && last.contains("  peak_reserved 2097152  "), "{last}");
}

#[test]
fn equal_figures_pass_and_a_failure_lists_the_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/folder/step.txt");
    let missing = check_golden(&report(1, false), &path, Update::Never).unwrap_err();
    assert!(matches!(&missing, GoldenError::File { .. }));
    assert!(missing.to_string().ends_with("set HIGHWATER_UPDATE_GOLDEN=1 to write it"), "{missing}");

    check_golden(&report(1, false), &path, Update::Always).unwrap();
    assert_eq!(check_golden(&report(1, false), &path, Update::Never), Ok(()));
    let other_ends = std::fs::read_to_string(&path).unwrap().replace('\n', "\r\n");
    std::fs::write(&path, other_ends).unwrap();
    assert_eq!(check_golden(&report(1, false), &path, Update::Never), Ok(()));

    let Err(GoldenError::Differs { difference, .. }) = check_golden(&report(2, true), &path, Update::Never)
    else {
        panic!("a difference was expected")
    };
    let line = |start: &str| difference.lines().find(|line| line.starts_with(start)).map(str::to_owned);
    assert_eq!(
        line("~ zeros:").unwrap(),
        "~ zeros: total 256 -> 512 (+256), high_water 256 -> 512 (+256), output 256 -> 512 (+256)"
    );
    assert!(line("- neg: calls 1 -> 0 (-1), ").is_some(), "{difference}");
    assert!(line("+ relu: calls 0 -> 1 (+1), ").is_some(), "{difference}");
    assert!(line("~ (pool): peak_in_use ").is_some(), "{difference}");
}

#[test]
fn a_malformed_file_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.txt");
    let good = text(&report(1, false));
    for bad in ["", "nonsense", "\u{0}\n\n\n(pool) x\nneg a b c\n", &good.replace("  ", "   ")] {
        std::fs::write(&path, bad).unwrap();
        let error = check_golden(&report(1, false), &path, Update::Never).unwrap_err();
        assert!(
            matches!(error, GoldenError::Differs { difference, .. } if !difference.is_empty()),
            "{bad:?}"
        );
    }
}
