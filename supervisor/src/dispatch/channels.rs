//! What evidence can be had, and what its absence means.

use lanewarden_probes::kmsg::ChannelState;

use super::Dispatcher;
use crate::view::{Channel, ChannelView};

impl Dispatcher {
    /// Every source of evidence that was looked at.
    pub(super) fn channels(&self) -> Vec<ChannelView> {
        if !self.began {
            return Vec::new();
        }
        Channel::ALL.iter().filter_map(|&channel| self.channel(channel)).collect()
    }

    fn channel(&self, channel: Channel) -> Option<ChannelView> {
        let (state, detail) = match channel {
            Channel::KernelLog => kernel_log(self.books.kernel_log),
            Channel::CgroupCounter => cgroup_counter(self.books.counters)?,
            Channel::BoxCounter => box_counter(self.books.box_counter?),
            Channel::WaitStatus if self.keeper_up => (ChannelState::Open, None),
            Channel::WaitStatus => (
                ChannelState::Lost,
                Some(
                    "no keeper answers: how workers end may stay unknown until one does".to_owned(),
                ),
            ),
        };
        Some(ChannelView { channel, state, detail })
    }

    /// What this daemon lacks, one sentence each.
    pub(super) fn degraded(&self) -> Vec<String> {
        let store = self.store_failure.iter().map(|why| format!("store: {why}"));
        let lacking = self
            .channels()
            .into_iter()
            .filter(|view| view.channel == Channel::KernelLog && view.state != ChannelState::Open);
        let said = lacking
            .map(|view| format!("kernel log {}: {}", view.state, view.detail.unwrap_or_default()));
        store.chain(said).collect()
    }
}

fn kernel_log(state: ChannelState) -> (ChannelState, Option<String>) {
    let detail = match state {
        ChannelState::Open => return (state, None),
        ChannelState::Denied => {
            "OOM victims are known by counters only; CAP_SYSLOG or kernel.dmesg_restrict=0 opens it"
        }
        ChannelState::Absent => {
            "OOM victims are known by counters only; there is no /dev/kmsg here, or it speaks of another pid namespace"
        }
        ChannelState::Lagging => "records are read late; verdicts may have to be amended",
        ChannelState::Lost => {
            "records were lost or cannot be read; counters tell how many kills there were"
        }
    };
    (state, Some(detail.to_owned()))
}

fn cgroup_counter((counted, runs): (usize, usize)) -> Option<(ChannelState, Option<String>)> {
    match runs.checked_sub(counted)? {
        _ if runs == 0 => None,
        0 => Some((ChannelState::Open, None)),
        without => Some((
            ChannelState::Absent,
            Some(format!(
                "{without} of {runs} runs have no memory cgroup of their own: only the kernel log tells of their OOM kills"
            )),
        )),
    }
}

fn box_counter(readable: bool) -> (ChannelState, Option<String>) {
    if readable {
        return (ChannelState::Open, None);
    }
    let detail = "/proc/vmstat has no oom_kill: OOM kills that no record names are noticed in runs with a counter only";
    (ChannelState::Absent, Some(detail.to_owned()))
}
