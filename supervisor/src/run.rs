//! The warden: sources in, one event at a time through the dispatcher, effects out.

#![expect(clippy::disallowed_methods, reason = "the loop measures its own turns")]

mod setup;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

pub(crate) use setup::target;
pub use setup::{RunError, worker_env};

use crate::{
    claims::Git,
    clock::Now,
    config::Config,
    dispatch::Dispatcher,
    effect::{Answer, Goodbye},
    effects::{Performer, Surroundings, claims, courier},
    event::Event,
    sources::{QUEUE, control, keeper, signals},
    store::{self, Store},
    web::Shared,
};

/// How the warden is run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Who starts the keeper.
    pub keeper: keeper::KeeperMode,
    /// End workers before we end, also on SIGTERM.
    pub with_workers: bool,
}

/// Runs the warden until it is told to end.
///
/// # Errors
/// [`RunError`], before anything is supervised; afterwards nothing of the world ends it.
pub async fn run(config: Config, options: RunOptions) -> Result<Goodbye, RunError> {
    let config = Arc::new(config);
    let _locks = setup::claim_places(&config)?;
    let us = setup::own_identity(&config)?;
    let connection = store::open(&store::path(&config.state_dir)).map_err(RunError::Store)?;
    let store = Store::start(connection, us.boot_id.clone()).map_err(RunError::thread("store"))?;
    let metrics = Arc::new(setup::metrics(&config, &store).await?);
    let (events, mut inbox) = mpsc::channel(QUEUE);
    let clients = control::Clients::default();
    control::listen(&control::socket_path(&config.runtime_dir), events.clone(), clients.clone())
        .map_err(RunError::place(&control::socket_path(&config.runtime_dir)))?;
    signals::listen(events.clone(), options.with_workers).map_err(RunError::thread("signals"))?;
    let shared = Arc::new(Shared::new(Arc::clone(&metrics)));
    setup::serve_http(&config, &shared)?;

    let places = keeper::Places {
        keeper_dir: keeper::keeper_dir(&config.runtime_dir),
        state_dir: config.state_dir.clone(),
        mode: options.keeper,
    };
    let (link, inventory) = tokio::select! {
        biased;
        connected = keeper::connect(places.clone(), events.clone()) => {
            connected.map_err(RunError::Keeper)?
        }
        () = told_to_end(&mut inbox, &clients) => return Ok(Goodbye { workers_left: 0 }),
    };
    let degraded = inventory.degraded.clone();
    let held = setup::held_claims(&store).await?;
    let mut performer = Performer {
        preparer: crate::effects::prepare::Preparer::start(
            &config,
            us.recorded.clone(),
            events.clone(),
        )
        .map_err(RunError::thread("lanes"))?,
        claims: setup::claims(&config, &us, &held, &metrics, &events)?,
        courier: setup::courier(&config, &store, &metrics)?,
        sampler: crate::effects::sample::Sampler::start(events.clone())
            .map_err(RunError::thread("sampler"))?,
        config: Arc::clone(&config),
        store: store.clone(),
        keeper: link,
        places,
        clients,
        metrics: Arc::clone(&metrics),
        watches: crate::sources::pidfd::Watches::default(),
        events: events.clone(),
        wake: None,
        store_well: true,
        unforgotten: Vec::new(),
        surroundings: Surroundings { degraded, ..Surroundings::default() },
    };
    let mut dispatcher = setup::dispatcher(&config, &us, held);
    let beginning =
        crate::sources::adoption::gather(&store, inventory, &us.boot_id, &config.machine, &events)
            .await
            .map_err(RunError::Store)?;
    let began = Event::Began(Box::new(beginning));
    let goodbye = turn_for_ever(&mut dispatcher, &mut performer, &shared, began, &mut inbox).await;
    farewell(&performer, goodbye, options).await;
    Ok(goodbye)
}

/// While there is no keeper nothing is supervised; but whoever asks gets an answer, and an order to end is obeyed.
async fn told_to_end(inbox: &mut mpsc::Receiver<Event>, clients: &control::Clients) {
    while let Some(event) = inbox.recv().await {
        if matches!(event, Event::Terminate(_)) {
            return;
        }
        if let Event::Control { id, .. } = event {
            let words = "the warden waits for its keeper; is lanewarden-keeper.service running?";
            clients.answer(id, Answer::Refused(words.to_owned()));
        }
    }
}

/// The loop.
async fn turn_for_ever(
    dispatcher: &mut Dispatcher,
    performer: &mut Performer,
    shared: &Shared,
    began: Event,
    inbox: &mut mpsc::Receiver<Event>,
) -> Goodbye {
    let mut next = Some(began);
    let watchdog = setup::watchdog();
    loop {
        let event = match next.take() {
            Some(event) => event,
            None => wait(inbox, performer.wake, watchdog).await,
        };
        let started = Instant::now();
        let now = Now::read();
        let effects = dispatcher.handle(event, now);
        if let Some(goodbye) = performer.perform(effects, now).await {
            return goodbye;
        }
        performer.probe_store(now).await;
        if inbox.is_empty() {
            if let Some(spool) = setup::spool_view(&performer.store).await {
                performer.surroundings.spool = spool;
            }
            let mut view = dispatcher.view(Now::read());
            performer.surroundings.dress(&mut view);
            if view.ready {
                setup::tell_ready(&view);
            }
            shared.publish(view);
        }
        shared.turned(Now::read(), started.elapsed());
        if watchdog.is_some() {
            setup::tell_manager(sd_notify::NotifyState::Watchdog);
        }
    }
}

/// The next event, or a tick when something is due. A tick also comes every five seconds: it proves that the loop turns,
/// and runs are measured upon it.
async fn wait(
    inbox: &mut mpsc::Receiver<Event>,
    wake: Option<u64>,
    watchdog: Option<Duration>,
) -> Event {
    const PULSE: Duration = Duration::from_secs(5);
    // A service manager's watchdog is fed by the turns themselves, twice in its time.
    let pulse = watchdog.map_or(PULSE, |within| (within / 2).min(PULSE));
    let pause = wake.map_or(pulse, |at| Now::read().until(at).min(pulse));
    tokio::select! {
        biased;
        event = inbox.recv() => event.unwrap_or(Event::Tick),
        () = sleep_until(Instant::now() + pause) => Event::Tick,
    }
}

/// Says the last words that others wait for, each bounded, and ends the keeper if nothing needs it.
async fn farewell(performer: &Performer, goodbye: Goodbye, options: RunOptions) {
    setup::tell_manager(sd_notify::NotifyState::Stopping);
    if let Some(claims) = &performer.claims {
        claims::Handle::finish(claims, Duration::from_secs(5)).await;
    }
    if let Some(courier) = &performer.courier {
        courier::Handle::finish(courier, Duration::from_secs(2)).await;
    }
    setup::settle_store(&performer.store).await;
    // Its last orders were to forget; a keeper that still has a run, or does not answer, goes on.
    let left = performer.keeper.settle(Duration::from_secs(2)).await;
    let ours = options.keeper == keeper::KeeperMode::Auto;
    if let Some(left) = left.filter(|left| ours && goodbye.workers_left == 0 && left.runs == 0) {
        setup::end_keeper(left.keeper_pid);
    }
    drop(std::fs::remove_file(control::socket_path(&performer.config.runtime_dir)));
}

/// Git as the configuration wants it.
#[must_use]
pub fn git(remote: &crate::config::Remote) -> Git {
    use crate::claims::{GitOptions, HttpsToken};
    Git::new(GitOptions {
        deadline: remote.deadline,
        ssh_key_file: remote.ssh_key_file.clone(),
        known_hosts_file: remote.known_hosts_file.clone(),
        https_token: remote
            .token_file
            .clone()
            .map(|file| HttpsToken { url: remote.url.clone(), file }),
        ..GitOptions::default()
    })
}
