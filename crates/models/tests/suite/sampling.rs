//! The choice of tokens, by distributions computed by hand.

use highwater_models::{Sampler, Sampling, SamplingError, StopTokens};
use highwater_tensor::Error;

/// The logits of these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln()).collect()
}

/// Checks the frequencies of the first token over many seeds, and of many tokens of one seed.
fn check_frequencies(sampling: &Sampling, logits: &[f32], previous: &[u32], expected: &[f64]) {
    const DRAWS: u32 = 4000;
    let seeds =
        (0..u64::from(DRAWS)).map(|seed| sampling.clone().seed(seed).sampler().next(logits, previous));
    let mut one = sampling.clone().seed(11).sampler();
    let sequence = sampling.clone().seed(12);
    let sequences = (0..u64::from(DRAWS)).map(|number| sequence.sampler_of(number).next(logits, previous));
    let seeds: Vec<u32> = seeds.map(Result::unwrap).collect();
    let sequences: Vec<u32> = sequences.map(Result::unwrap).collect();
    let stream: Vec<u32> = (0..DRAWS).map(|_| one.next(logits, previous).unwrap()).collect();
    for (name, tokens) in [("seeds", seeds), ("sequences", sequences), ("stream", stream)] {
        for (token, &expected) in (0_u32..).zip(expected) {
            let share = tokens.iter().filter(|drawn| **drawn == token).count() as f64 / f64::from(DRAWS);
            // Five standard deviations.
            let bound = 5.0 * (expected * (1.0 - expected) / f64::from(DRAWS)).sqrt();
            assert!((share - expected).abs() <= bound, "{name}, token {token}: {share}, not {expected}");
        }
    }
}

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_of_equal_tokens() {
    let mut greedy = Sampling::new().sampler();
    assert_eq!(greedy.next(&[0.5, 2.0, -1.0, 2.0], &[0, 1]), Ok(1));
    assert_eq!(greedy.next(&[-0.0, 0.0], &[]), Ok(0));
    assert_eq!(greedy.next(&[f32::NEG_INFINITY, f32::MIN], &[]), Ok(1));
    let settings = Sampling::new().top_k(3).unwrap().top_p(0.1).unwrap().seed(5);
    assert!(settings.is_greedy());
    assert_eq!(settings.sampler().next(&[0.5, 2.0, -1.0, 2.0], &[]), Ok(1));
}

#[test]
fn frequencies_are_those_of_the_softmax() {
    let sampling = Sampling::new().temperature(1.0).unwrap();
    let logits = logits(&[0.05, 0.5, 0.15, 0.3]);
    check_frequencies(&sampling, &logits, &[], &[0.05, 0.5, 0.15, 0.3]);
    // An offset and an excluded token do not change the probabilities.
    let shifted: Vec<f32> = logits.iter().map(|logit| logit + 40.0).chain([f32::NEG_INFINITY]).collect();
    check_frequencies(&sampling, &shifted, &[], &[0.05, 0.5, 0.15, 0.3, 0.0]);
}

#[test]
fn temperature_divides_logits() {
    // Probabilities to the power 1 / 2: 0.8, 0.4, 0.2, with the sum 1.4.
    let sampling = Sampling::new().temperature(2.0).unwrap();
    check_frequencies(&sampling, &logits(&[0.64, 0.16, 0.04]), &[], &[0.8 / 1.4, 0.4 / 1.4, 0.2 / 1.4]);
    // To the power 2: 0.36, 0.16, with the sum 0.52.
    let sampling = Sampling::new().temperature(0.5).unwrap();
    check_frequencies(&sampling, &logits(&[0.6, 0.4]), &[], &[0.36 / 0.52, 0.16 / 0.52]);
    // The smallest positive temperature is greedy in effect.
    let sampling = Sampling::new().temperature(f32::from_bits(1)).unwrap();
    check_frequencies(&sampling, &[1.0, f32::MAX, f32::MIN, 2.0], &[], &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn top_k_keeps_the_largest_logits() {
    let sampling = |count| Sampling::new().temperature(1.0).unwrap().top_k(count).unwrap();
    let values = logits(&[0.05, 0.5, 0.15, 0.3]);
    check_frequencies(&sampling(2), &values, &[], &[0.0, 0.625, 0.0, 0.375]);
    check_frequencies(&sampling(1), &values, &[], &[0.0, 1.0, 0.0, 0.0]);
    check_frequencies(&sampling(100), &values, &[], &[0.05, 0.5, 0.15, 0.3]);
    // Of equal logits, the lowest ids remain.
    check_frequencies(&sampling(2), &[1.0, 1.0, 1.0, 0.0], &[], &[0.5, 0.5, 0.0, 0.0]);
}

#[test]
fn top_p_keeps_the_smallest_sufficient_set() {
    let sampling = |share| Sampling::new().temperature(1.0).unwrap().top_p(share).unwrap();
    let values = logits(&[0.05, 0.5, 0.15, 0.3]);
    check_frequencies(&sampling(0.45), &values, &[], &[0.0, 1.0, 0.0, 0.0]);
    check_frequencies(&sampling(0.7), &values, &[], &[0.0, 0.625, 0.0, 0.375]);
    check_frequencies(&sampling(0.9), &values, &[], &[0.0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]);
    check_frequencies(&sampling(1e-30), &values, &[], &[0.0, 1.0, 0.0, 0.0]);
    // After top-k the shares are 0.625 and 0.375: the first suffices for 0.6, although it has 0.5 of all.
    check_frequencies(&sampling(0.6).top_k(2).unwrap(), &values, &[], &[0.0, 1.0, 0.0, 0.0]);
    // The temperature comes first: 0.5 becomes 0.25 of 0.365, which is 0.68.
    let colder = sampling(0.6).temperature(0.5).unwrap();
    check_frequencies(&colder, &values, &[], &[0.0, 1.0, 0.0, 0.0]);
}

/// A vocabulary that needs several sorted blocks.
#[test]
fn top_p_of_a_flat_distribution_keeps_its_share() {
    const TOKENS: u32 = 20_000;
    let sampling = Sampling::new().temperature(1.0).unwrap().top_p(0.25).unwrap();
    let equal = vec![0.25; TOKENS as usize];
    let mut sampler = sampling.sampler();
    let tokens: Vec<u32> = (0..100).map(|_| sampler.next(&equal, &[]).unwrap()).collect();
    // The lowest ids of equal logits remain.
    let largest = tokens.iter().max().unwrap();
    assert!((4500..5000).contains(largest), "{largest}");
    assert!(*tokens.iter().min().unwrap() < 500);
}

/// `transformers` computes `where(score < 0, score * penalty, score / penalty)` once per token.
#[test]
fn the_repetition_penalty_is_that_of_transformers() {
    let sampling = |penalty| Sampling::new().repetition_penalty(penalty).unwrap();
    // 2 / 1.25 = 1.6, once: twice would be 1.28.
    assert_eq!(sampling(1.25).sampler().next(&[2.0, 1.59, 0.0], &[0, 0]), Ok(0));
    assert_eq!(sampling(1.25).sampler().next(&[2.0, 1.61, 0.0], &[0, 0]), Ok(1));
    // -1 * 1.25 = -1.25.
    assert_eq!(sampling(1.25).sampler().next(&[-1.0, -1.24], &[0]), Ok(1));
    assert_eq!(sampling(1.25).sampler().next(&[-1.0, -1.26], &[0]), Ok(0));
    // Below 1, previous tokens become more probable.
    assert_eq!(sampling(0.5).sampler().next(&[1.0, 1.5], &[0]), Ok(0));
    // Before the temperature: ln 0.5 * 2 makes 0.25, which is 1 / 3 of the sum 0.75.
    let random = sampling(2.0).temperature(1.0).unwrap();
    check_frequencies(&random, &logits(&[0.5, 0.5]), &[0], &[1.0 / 3.0, 2.0 / 3.0]);
    // Excluded tokens stay excluded, and no value overflows.
    assert_eq!(sampling(0.5).sampler().next(&[f32::NEG_INFINITY, f32::MIN], &[0, 1]), Ok(1));
    assert_eq!(sampling(1e-30).sampler().next(&[f32::MAX, f32::MAX], &[0, 1]), Ok(0));
    assert_eq!(sampling(1e30).sampler().next(&[f32::MIN, f32::MIN], &[0, 1]), Ok(0));
    // The buffers of one row do not change the next, also of another length.
    let mut sampler = sampling(2.0).sampler();
    assert_eq!(sampler.next(&[4.0, 3.0, 0.0], &[0]), Ok(1));
    assert_eq!(sampler.next(&[4.0, 3.0, 0.0], &[]), Ok(0));
    assert_eq!(sampler.next(&[4.0, 3.0, 0.0, 5.0], &[3]), Ok(0));
    assert_eq!(sampler.next(&[4.0, 3.0], &[1]), Ok(0));
}

#[test]
fn one_seed_reproduces_a_sequence() {
    let values: Vec<f32> = (0..1000).map(|token| (token as f32 * 0.7).sin()).collect();
    let draw =
        |mut sampler: Sampler| -> Vec<u32> { (0..20).map(|_| sampler.next(&values, &[]).unwrap()).collect() };
    let sampling = Sampling::new().temperature(1.0).unwrap().top_k(500).unwrap().top_p(0.95).unwrap();
    let first = draw(sampling.clone().seed(1).sampler());
    assert_eq!(first, draw(sampling.clone().seed(1).sampler()));
    assert_eq!(first, draw(sampling.clone().seed(1).sampler_of(0)));
    assert_ne!(first, draw(sampling.clone().seed(2).sampler()));
    assert_ne!(first, draw(sampling.seed(1).sampler_of(1)));
}

#[test]
fn settings_out_of_range_are_errors() {
    let is_bad = |result: Result<Sampling, Error>, name: &str| matches!(result, Err(Error::BadArgument { op: "sample", argument, .. }) if argument == name);
    for temperature in [-0.1, f32::NAN, f32::INFINITY] {
        assert!(is_bad(Sampling::new().temperature(temperature), "temperature"));
    }
    for share in [0.0, -1.0, 1.01, f32::NAN] {
        assert!(is_bad(Sampling::new().top_p(share), "top_p"));
    }
    for penalty in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(is_bad(Sampling::new().repetition_penalty(penalty), "repetition_penalty"));
    }
    assert!(is_bad(Sampling::new().top_k(0), "top_k"));
}

#[test]
fn bad_logits_are_errors_and_leave_the_sampler_unchanged() {
    let sampling = Sampling::new().temperature(1.0).unwrap().repetition_penalty(1.5).unwrap().seed(3);
    let mut sampler = sampling.sampler();
    let error = sampler.next(&[0.0, f32::NAN, 1.0], &[]).unwrap_err();
    assert!(matches!(error, SamplingError::NotFinite { token: 1, value } if value.is_nan()));
    assert_eq!(error.to_string(), "sample: the logit of token 1 is NaN; expected a number below infinity");
    let infinite = SamplingError::NotFinite { token: 2, value: f32::INFINITY };
    assert_eq!(sampler.next(&[0.0, 1.0, f32::INFINITY], &[]), Err(infinite));
    assert_eq!(sampler.next(&[], &[]), Err(SamplingError::NoToken { tokens: 0 }));
    assert_eq!(sampler.next(&[f32::NEG_INFINITY; 2], &[0]), Err(SamplingError::NoToken { tokens: 2 }));
    assert_eq!(sampler.next(&[0.0; 2], &[0, 2]), Err(SamplingError::UnknownToken { token: 2, tokens: 2 }));
    let error = Error::from(infinite);
    assert_eq!(error.to_string(), infinite.to_string());

    let values = logits(&[0.2, 0.3, 0.5]);
    let mut fresh = sampling.sampler();
    for _ in 0..20 {
        assert_eq!(sampler.next(&values, &[1]), fresh.next(&values, &[1]));
    }
}

#[test]
fn stop_tokens_are_a_set() {
    let tokens: StopTokens = [7, 2, 7].into_iter().collect();
    assert_eq!(tokens.as_slice(), [2, 7]);
    assert!(tokens.contains(7) && !tokens.contains(3) && !StopTokens::default().contains(0));
    // The end token of a vocabulary is an option.
    assert_eq!(StopTokens::new(None), StopTokens::default());
}
