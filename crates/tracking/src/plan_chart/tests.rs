use bfc_core::GIB;

use super::*;

fn chart() -> PlanChart {
    let mut chart = PlanChart::new("h100-80g").with_limit(80 * GIB).with_chosen(1);
    chart.rows = vec![
        PlanRow::new("micro-batch 64, f32", 110 * GIB, 1.25, 51.2)
            .with_limited_by("compute")
            .with_fits(false),
        PlanRow::new("micro-batch 8 × 8, 3 blocks recomputed, bf16", 40 * GIB, 0.5, 128.0)
            .with_limited_by("memory")
            .with_is_on_front(true),
    ];
    chart
}

#[test]
fn a_chart_prints_as_an_aligned_table_with_complete_names() {
    let expected = "\
2 plans for h100-80g with 80.0 GiB, 1 fits

  plan                                              peak    share      step  samples/s    limited by
----------------------------------------------------------------------------------------------------
  micro-batch 64, f32                            110 GiB  137.5 %    1.25 s      51.20  does not fit
* micro-batch 8 × 8, 3 blocks recomputed, bf16  40.0 GiB   50.0 %  500.0 ms      128.0        memory

* the chosen plan
";
    assert_eq!(chart().to_string(), expected);
    let mut long = chart();
    long.rows[1].plan = "a long description of a plan, ".repeat(9);
    assert!(long.to_string().contains(long.rows[1].plan.trim_end()));
}

#[test]
fn a_measured_peak_is_compared_with_the_chosen_plan() {
    let text = |peak_bytes| chart().with_measured(peak_bytes, Some(0.52)).to_string();
    let same =
        "measured peak: 40.00 GiB, exactly as predicted\nmeasured step: 520.0 ms, estimated 500.0 ms\n";
    assert!(text(40 * GIB).ends_with(same));
    assert!(text(40 * GIB - 512).contains("measured peak: 40.00 GiB, 512 B less than predicted\n"));
    assert!(text(40 * GIB + 512).contains("measured peak: 40.00 GiB, 512 B more than predicted\n"));
}

#[test]
fn columns_without_figures_are_omitted() {
    let mut chart = PlanChart::new("cpu:0");
    assert_eq!(chart.to_string(), "0 plans for cpu:0, 0 fit\n");
    chart.rows = vec![PlanRow::new("micro-batch 8", GIB, f64::NAN, f64::INFINITY)];
    let expected = "\
1 plan for cpu:0, 1 fits

  plan               peak
-------------------------
  micro-batch 8  1.00 GiB

";
    assert_eq!(chart.to_string(), expected);
}

#[test]
fn figures_out_of_range_do_not_break_the_table() {
    let mut chart = chart();
    chart.chosen = Some(9);
    for seconds in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-300, 1e300, 2.0] {
        chart.rows.push(PlanRow::new("\x1b[2J", u64::MAX, seconds, 1.0 / seconds));
    }
    let text = chart.to_string();
    let steps: Vec<&str> = text.lines().filter(|line| line.contains("16.0 EiB")).collect();
    assert_eq!(steps.len(), 7);
    assert!(steps[5].contains("1.00e300 s") && steps[6].contains("2.00 s"), "{text}");
    assert!(!text.contains('\x1b') && !text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(!text.contains('*'));
}

#[test]
fn json_has_the_names_of_the_fields_and_null_for_infinite_times() {
    let mut chart = chart().with_measured(40 * GIB, None);
    chart.rows[0].seconds = f64::INFINITY;
    let expected = serde_json::json!({
        "device": "h100-80g",
        "limit_bytes": 80 * GIB,
        "rows": [
            {
                "plan": "micro-batch 64, f32", "peak_bytes": 110 * GIB, "seconds": null,
                "samples_per_second": 51.2, "limited_by": "compute", "fits": false, "is_on_front": false,
            },
            {
                "plan": "micro-batch 8 × 8, 3 blocks recomputed, bf16", "peak_bytes": 40 * GIB, "seconds": 0.5,
                "samples_per_second": 128.0, "limited_by": "memory", "fits": true, "is_on_front": true,
            },
        ],
        "chosen": 1,
        "measured_peak_bytes": 40 * GIB,
        "measured_seconds": null,
        "notes": [],
    });
    assert_eq!(serde_json::to_value(&chart).unwrap(), expected);
}
