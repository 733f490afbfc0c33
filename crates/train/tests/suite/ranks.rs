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
            .train_steps(1, |_| x(), |x| model.forward(x)?.square()?.mean_all())
            .map(drop)
    };
    let refused = train(&World::rehearsal(1, 2).unwrap(), &mut optimizer).unwrap_err();
    assert!(matches!(&refused, Error::BadArgument { argument: "model", got, .. } if got.contains("norm.")));
    train(&World::alone(), &mut optimizer).unwrap();
}

#[test]
fn ranks_need_an_optimizer_of_their_world() {
    let device = Device::cpu().unwrap();
    let model = Linear::new(&device, 1, 1, &Rng::new(0)).unwrap();
    let mut optimizer = Sgd::new(model.parameters(), 0.1).unwrap();
    let world = World::rehearsal(0, 2).unwrap();
    let trainer = Trainer::new(&model, &mut optimizer).world(&world);
    let refused = trainer.train_steps(1, |_| Tensor::ones(&device, [1, 1]), |x| model.forward(x)?.mean_all());
    assert!(matches!(refused, Err(Error::BadArgument { argument: "optimizer", .. })));
}
