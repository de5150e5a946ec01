//! Row 4: the server crashes and restarts, again and again, under load.

use std::time::{Duration, Instant};

use super::killed_workers::fleet;

use super::{Figures, Size, World};

pub async fn a_server_that_crashes_under_load_keeps_what_it_acknowledged(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("killed_server", seed, &[]).await;
    let mut fleet = fleet(&mut world, 3);
    let until = Instant::now() + size.seconds(12, 60);
    while Instant::now() < until {
        let up = Duration::from_millis(world.random.u64(300..2500));
        tokio::time::sleep(up).await;
        world.crash_server();
        let down = Duration::from_millis(world.random.u64(0..1000));
        tokio::time::sleep(down).await;
        world.start_server();
    }
    fleet.finish_publishers(&world);
    world.drain(&mut fleet).await;
    world.judge(Vec::new()).await
}
