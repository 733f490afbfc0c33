//! Runs with several ranks.

use highwater::distributed::World;
use highwater::prelude::*;
use highwater::train::Trainer;

#[test]
fn models_with_moving_averages_are_refused() {
    let device = Device::cpu().unwrap();
    let model = Sequential::new().with("norm", BatchNorm::new(&device, 3).unwrap());
    let mut optimizer = Sgd::new(model.parameters(), 0.1).unwrap();
    let train = |world: &World, optimizer: &mut Sgd| {
        let x = || Tensor::ones(&device, [2, 3, 4, 4]);
        Trainer::new(&model, optimizer)
            .world(world)
            .fit_steps(1, |_| x(), |x| model.forward(x)?.square()?.mean_all())
            .map(drop)
    };
    let refused = train(&World::rehearsal(1, 2).unwrap(), &mut optimizer).unwrap_err();
    assert!(matches!(&refused, Error::BadArgument { argument: "model", got, .. } if got.contains("norm.")));
    train(&World::alone(), &mut optimizer).unwrap();
}
