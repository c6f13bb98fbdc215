//! From wishes to the updates of one push.

use super::{ClaimWish, Desk, GitError, LaneClaim, LaneId, RefUpdate};

impl Desk {
    /// The wanted changes, each with its lane. All the commits are written in one go.
    pub(super) fn wanted(
        &self,
        lanes: &[LaneId],
        ts: u64,
    ) -> Result<(Vec<LaneId>, Vec<RefUpdate>), GitError> {
        let wishes: Vec<&ClaimWish> =
            lanes.iter().filter_map(|lane| self.wishes.get(lane)).collect();
        let claims: Vec<LaneClaim> =
            wishes.iter().filter(|wish| !wish.remove).map(|wish| self.claim(wish, ts)).collect();
        let messages: Vec<String> = claims.iter().map(LaneClaim::to_message).collect();
        let written = self.setting.scratch.write_commits(&messages, ts)?;
        let mut made = claims.iter().map(LaneClaim::ref_name).zip(written);
        let mut owners = Vec::new();
        let mut updates = Vec::new();
        for wish in wishes {
            let changes = if wish.remove {
                self.removal(wish)
            } else if let Some((Some(name), oid)) = made.next() {
                self.stamping(wish, name, oid)
            } else {
                Vec::new()
            };
            owners.extend(std::iter::repeat_n(wish.lane.clone(), changes.len()));
            updates.extend(changes);
        }
        Ok((owners, updates))
    }

    fn removal(&self, wish: &ClaimWish) -> Vec<RefUpdate> {
        let held = self.setting.held.get(&wish.lane);
        held.map(|(name, oid)| RefUpdate {
            ref_name: name.clone(),
            new: None,
            expect: Some(oid.clone()),
        })
        .into_iter()
        .collect()
    }

    /// The lane's ref, and the old one if the lane's issue changed.
    fn stamping(&self, wish: &ClaimWish, name: String, oid: String) -> Vec<RefUpdate> {
        let held = self.setting.held.get(&wish.lane);
        let expect = held.filter(|(own, _)| *own == name).map(|(_, oid)| oid.clone());
        let old = held.filter(|(own, _)| *own != name).cloned();
        // The new ref stands before the old one goes: the lane is never without a claim.
        let mut updates = vec![RefUpdate { ref_name: name, new: Some(oid), expect }];
        updates.extend(old.map(|(old, oid)| RefUpdate {
            ref_name: old,
            new: None,
            expect: Some(oid),
        }));
        updates
    }
}
