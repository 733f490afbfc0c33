use super::*;
use proptest::prelude::*;

fn category() -> impl Strategy<Value = Category> {
    (0..Category::COUNT).prop_map(|index| Category::ALL[index])
}

/// Numbers of any size: uniform ones are all large.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift)
}

fn event() -> impl Strategy<Value = RawEvent<'static>> {
    let text = prop::sample::select(&["", "fc1", "büro", "a.b:c"][..]);
    let phase = prop::sample::select(
        &[None, Some(Phase::Forward), Some(Phase::Backward), Some(Phase::Optimizer)][..],
    );
    prop_oneof![
        (number(), number(), number(), number(), 0_u32..5, category()).prop_map(
            |(id, requested, more, address, owner, category)| RawEvent::Alloc {
                id,
                requested,
                granted: requested.saturating_add(more),
                address,
                owner,
                category
            }
        ),
        number().prop_map(|id| RawEvent::Free { id }),
        (number(), any::<u32>(), category()).prop_map(|(id, owner, category)| RawEvent::Retag {
            id,
            owner,
            category
        }),
        (0_u32..5).prop_map(|owner| RawEvent::Enter { owner }),
        (number(), number()).prop_map(|(high_water, outliving)| RawEvent::Leave { high_water, outliving }),
        (number(), 0_u32..5, category()).prop_map(|(requested, owner, category)| RawEvent::Failed {
            requested,
            owner,
            category
        }),
        (number(), number(), any::<bool>()).prop_map(|(address, bytes, taken)| RawEvent::Region {
            address,
            bytes,
            taken
        }),
        text.clone().prop_map(|text| RawEvent::Mark { text }),
        text.clone().prop_map(|text| RawEvent::Report { text }),
        number().prop_map(|events| RawEvent::Lost { events }),
        (any::<u32>(), any::<u32>(), phase, text.clone())
            .prop_map(|(owner, parent, phase, name)| RawEvent::Owner { owner, parent, phase, name }),
        (any::<u32>(), text.clone(), text).prop_map(|(pool, memory, name)| RawEvent::Pool {
            pool,
            memory,
            name
        }),
    ]
}

proptest! {
    #[test]
    fn written_events_read_back(events in prop::collection::vec((number(), event(), 0_u64..3, 0_u32..2), 0..40)) {
        let mut encoder = Encoder::default();
        let (mut written, mut time) = (Vec::new(), 0_u64);
        for (passed, event, thread, pool) in &events {
            let context = EventContext { thread: *thread, pool: *pool, stream: 0 };
            time = time.saturating_add(passed >> 8);
            encoder.at(context);
            encoder.push(time, event);
            written.push((time, context, *event));
        }
        let mut decoder = Decoder::new(encoder.bytes());
        let mut read = Vec::new();
        while let Some(event) = decoder.next().unwrap() {
            if !matches!(event, RawEvent::Switch { .. }) {
                read.push((decoder.time(), decoder.context(), event));
            }
        }
        // Events without a time have that of the event before.
        let timeless = |event: &RawEvent<'_>| {
            matches!(
                event,
                RawEvent::Lost { .. } | RawEvent::Owner { .. } | RawEvent::Pool { .. } | RawEvent::Report { .. }
            )
        };
        prop_assert_eq!(read.len(), written.len());
        for (read, written) in read.iter().zip(&written) {
            prop_assert_eq!((read.1, read.2), (written.1, written.2));
            prop_assert!(timeless(&read.2) || read.0 == written.0);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut decoder = Decoder::new(&bytes);
        let mut before = 0;
        while let Ok(Some(_)) = decoder.next() {
            prop_assert!(decoder.position() > before);
            before = decoder.position();
        }
    }
}

#[test]
fn an_allocation_in_the_usual_order_takes_few_bytes() {
    let mut encoder = Encoder::default();
    let alloc = |id, address| RawEvent::Alloc {
        id,
        requested: 1000,
        granted: 1024,
        address,
        owner: 3,
        category: Category::Output,
    };
    encoder.push(1_000, &alloc(1, 0x7f00_0000_0000));
    let before = encoder.len();
    encoder.push(2_000, &alloc(2, 0x7f00_0000_0400));
    // Tag, time, address, category, bytes asked for, bytes granted above that.
    assert_eq!(encoder.len() - before, 1 + 2 + 1 + 1 + 2 + 1);
    encoder.push(2_100, &RawEvent::Free { id: 1 });
    assert_eq!(encoder.len() - before, 8 + 3);
}

#[test]
fn flags_that_mean_nothing_are_refused() {
    let found = tag::FREE | tag::EXACT;
    assert_eq!(Decoder::new(&[found, 0, 0]).next(), Err(EventProblem::UnknownKind { found }));
    assert_eq!(Decoder::new(&[0x0f]).next(), Err(EventProblem::UnknownKind { found: 0x0f }));
}

#[test]
fn long_texts_are_cut_between_letters() {
    let mut encoder = Encoder::default();
    encoder.push(0, &RawEvent::Mark { text: &"é".repeat(MAX_TEXT) });
    let RawEvent::Mark { text } = Decoder::new(encoder.bytes()).next().unwrap().unwrap() else {
        unreachable!()
    };
    assert_eq!(text, "é".repeat(MAX_TEXT / 2));
}
