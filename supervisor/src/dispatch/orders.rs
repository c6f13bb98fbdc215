//! Orders of operators, and the end of the daemon itself.

use super::{Dispatcher, finish::age_ms, turn::Turn};
use crate::{
    clock::Now,
    config::Mode,
    decide::{exit::StopCause, restart::History},
    effect::{Answer, ControlId, Effect},
    event::{Order, Termination},
    ids::LaneId,
    lane::{Spent, Step},
    store::rows::Write,
    verdict::LaneState,
};

impl Dispatcher {
    pub(super) fn on_order(&mut self, client: ControlId, order: Order, now: Now, turn: &mut Turn) {
        if let Some(what) = audited(&order) {
            turn.write(Write::Audit { at_ms: now.unix_ms, what });
        }
        match order {
            Order::Status => {
                let view = self.view(now);
                turn.then(Effect::Reply(client, Answer::Status(Box::new(view))));
            }
            Order::Drain => self.drain(client, now, turn),
            Order::Stop(id) if self.orderable(&id, client, turn) => {
                self.stop(&id, client, now, turn)
            }
            Order::Start(id) if self.startable(&id, client, turn) => {
                self.start(&id, client, now, turn);
            }
            Order::Restart(id) if self.startable(&id, client, turn) => {
                self.restart(&id, client, now, turn);
            }
            Order::Issue(id, issue) if self.orderable(&id, client, turn) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.issue = Some(issue);
                    let (state, reason) = (lane.state, lane.reason.clone());
                    self.move_to(&id, state, reason, now, turn);
                }
                turn.done(client, format!("{id} works on issue {issue}"));
            }
            // Refused by the guard above, with the reason.
            Order::Stop(_) | Order::Start(_) | Order::Restart(_) | Order::Issue(..) => {}
        }
    }

    /// Whether the lane takes orders; says why not.
    fn orderable(&self, id: &LaneId, client: ControlId, turn: &mut Turn) -> bool {
        match self.lanes.get(id).map(|lane| lane.config.mode) {
            Some(Mode::Manage) => return true,
            Some(Mode::Observe) => turn.refuse(
                client,
                format!("{id} is observed: somebody else starts and stops its worker"),
            ),
            None => {
                let known: Vec<&str> = self.lanes.keys().map(LaneId::as_str).collect();
                turn.refuse(
                    client,
                    format!("no lane {id} is configured; there are: {}", known.join(", ")),
                );
            }
        }
        false
    }

    /// Whether the lane may be started on order; says why not.
    fn startable(&self, id: &LaneId, client: ControlId, turn: &mut Turn) -> bool {
        if !self.orderable(id, client, turn) {
            return false;
        }
        if self.ending.termination.is_some() {
            turn.refuse(client, "the daemon is ending; order it from the next one".to_owned());
        } else if self.ending.draining {
            turn.refuse(client, "the box is draining; restart the daemon to end that".to_owned());
        }
        !self.ending.winds_down()
    }

    fn stop(&mut self, id: &LaneId, client: ControlId, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.down = true;
        lane.again = false;
        lane.next_start = None;
        if lane.run.is_some() {
            lane.waiting.push(client);
            self.order_end(id, StopCause::Order, now, turn);
        } else if lane.step == Step::Idle {
            let already = lane.state == LaneState::Stopped;
            lane.waiting.push(client);
            if !already {
                turn.then(Effect::Release(id.clone()));
            }
            self.move_to(id, LaneState::Stopped, Some("stopped on order".to_owned()), now, turn);
        } else {
            // Its preparation answers soon, and finds it down.
            if matches!(lane.step, Step::Claiming(_)) {
                lane.step = Step::Idle;
                turn.then(Effect::Release(id.clone()));
                lane.waiting.push(client);
                return self.move_to(
                    id,
                    LaneState::Stopped,
                    Some("stopped on order".to_owned()),
                    now,
                    turn,
                );
            }
            lane.waiting.push(client);
        }
    }

    fn start(&mut self, id: &LaneId, client: ControlId, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        if lane.run.is_some() {
            if !std::mem::take(&mut lane.down) && !lane.again {
                let seconds = age_ms(lane, now).unwrap_or(0) / 1000;
                return turn.done(client, format!("{id} has a worker since {seconds} s"));
            }
            lane.again = true;
            turn.write(Write::Lane(lane.row()));
            return turn
                .done(client, format!("{id} starts another worker when this one has ended"));
        }
        lane.down = false;
        lane.history = History::default();
        lane.spent = Spent { since_ms: now.unix_ms, ..Spent::default() };
        // A start that is under way goes on; whoever waited for the lane to be down is overruled.
        for waiting in lane.waiting.drain(..) {
            turn.refuse(waiting, format!("a later order starts {id}"));
        }
        if lane.step == Step::Idle {
            lane.next_start = Some(now.boot_ms);
        }
        turn.write(Write::Lane(lane.row()));
        turn.done(client, format!("{id} starts"));
    }

    fn restart(&mut self, id: &LaneId, client: ControlId, now: Now, turn: &mut Turn) {
        let running = self.lanes.get(id).is_some_and(|lane| lane.run.is_some());
        if !running {
            return self.start(id, client, now, turn);
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.down = false;
            lane.again = true;
            lane.waiting.push(client);
        }
        self.order_end(id, StopCause::Restart, now, turn);
    }

    fn drain(&mut self, client: ControlId, now: Now, turn: &mut Turn) {
        self.ending.draining = true;
        let ids: Vec<LaneId> = self.lanes.keys().cloned().collect();
        let mut running = 0;
        for id in ids {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if lane.config.mode == Mode::Observe {
                continue;
            }
            lane.next_start = None;
            let waits = match lane.step {
                Step::Idle => {
                    matches!(lane.state, LaneState::Cooling | LaneState::Held | LaneState::Occupied)
                }
                Step::Claiming(_) => true,
                // The answer finds us draining.
                Step::Preparing | Step::Spawning => false,
            };
            if lane.run.is_some() {
                running += 1;
            } else if waits {
                lane.step = Step::Idle;
                turn.then(Effect::Release(id.clone()));
                self.move_to(&id, LaneState::Stopped, Some("drained".to_owned()), now, turn);
            }
        }
        turn.done(
            client,
            format!("nothing more is started; {running} workers finish what they do"),
        );
    }

    pub(super) fn on_terminate(&mut self, how: Termination, now: Now, turn: &mut Turn) {
        let stronger = self.ending.termination.is_none_or(|before| how > before);
        if !stronger {
            return;
        }
        self.ending.termination = Some(how);
        if how == Termination::LeaveWorkers {
            return;
        }
        let ids: Vec<LaneId> = self.lanes.keys().cloned().collect();
        for id in ids {
            self.order_end(&id, StopCause::Order, now, turn);
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if let (Termination::AtOnce, Some(stopping)) =
                (how, lane.run.as_mut().and_then(|run| run.stopping.as_mut()))
            {
                // The grace is over: the next look at the rungs kills.
                stopping.term_at = 0;
            }
            let idle = lane.run.is_none() && lane.config.mode == Mode::Manage;
            if idle
                && matches!(lane.state, LaneState::Cooling | LaneState::Held | LaneState::Starting)
            {
                lane.step = Step::Idle;
                self.move_to(
                    &id,
                    LaneState::Stopped,
                    Some("the daemon was stopped".to_owned()),
                    now,
                    turn,
                );
            }
        }
    }
}

fn audited(order: &Order) -> Option<String> {
    Some(match order {
        Order::Status => return None,
        Order::Stop(lane) => format!("order: stop {lane}"),
        Order::Start(lane) => format!("order: start {lane}"),
        Order::Restart(lane) => format!("order: restart {lane}"),
        Order::Drain => "order: drain".to_owned(),
        Order::Issue(lane, issue) => format!("worker of {lane}: issue {issue}"),
    })
}
