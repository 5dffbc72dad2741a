/* EVIL, the easy-to-use virtual interface library: messages between two programs of one OpenTOE engine, in namespaces of
 * their own or not. Link with -ltoe_via.
 *
 * The six calls are those of "Development of Easy-to-use VI Programming Library" (2001), section III.3. A function returns a negative
 * number when it fails; via_strerror says what it means. Any thread may call any function, also on one channel at a time, but for
 * via_close.
 *
 * Made from the sources of crates/via by cbindgen; do not edit. */

#ifndef OPENTOE_EVIL_H
#define OPENTOE_EVIL_H

// Bytes of a name with the zero behind it.
#define VIA_NAME_LEN 36

// The other side has sent something, or has left.
#define VIA_IN 1

// A small message can be sent without waiting.
#define VIA_OUT 4

// The other side has left. Always reported.
#define VIA_HUP 16

// A channel. Filled in by via_open; to be passed on, not to be changed.
typedef struct {
    // The peer's name as via_open was given it, and the port.
    char name[VIA_NAME_LEN];
    // The virtual interface: the library's number for the channel. 0: none.
    int viHand;
    // The network interface: 0, the process's engine.
    int nicHand;
    // The memory protection tag: 0, the library's own.
    int ptag;
    // The port.
    int port;
    // This node's name, and that of the peer.
    char localAddr[VIA_NAME_LEN];
    char remoteAddr[VIA_NAME_LEN];
    // Receive buffers, used round robin: how many of what size. They lie in memory that is made when the two have met.
    int buffers;
    int bufferSize;
} ViaChann;

// A channel to be waited for by via_poll.
typedef struct {
    const ViaChann *chann;
    // VIA_IN, VIA_OUT.
    short events;
    // Filled in: VIA_IN, VIA_OUT, VIA_HUP.
    short revents;
} ViaPoll;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a channel to the node `peer` (see below) at `port`, 1 to 255, and fills in `vc`. A peer that is NULL, "" or "*" is
// anybody for via_wait and this node for via_connect, as "localhost" is. The first channel attaches the process to its engine: that of the
// environment variable TOE_ENGINE, else the user's engine named "default", else root's.
//
// A node has the host's name, or that in the environment variable TOE_VIA_NODE. A peer that is an IP address is a program at another
// host's engine; a program is found from there if the environment variable TOE_VIA_ADDRESS has that address when it waits.
//
// Blocks until the engine has answered. Returns 0, or a negative number of which via_strerror tells the meaning.
//
// # Safety
// `vc` is NULL or can be written to; `peer` is NULL or a string.
int via_open(ViaChann *vc,
             const char *peer,
             int port);

// Waits until the channel's peer connects at its port, and accepts.
//
// Blocks as long as via_timeout says. Returns 0 or a negative number.
int via_wait(ViaChann vc);

// Connects to the channel's peer at its port. The peer may come to wait there later.
//
// Blocks as long as via_timeout says, and half a minute if that was not called. Returns 0 or a negative number.
int via_connect(ViaChann vc);

// Sends a message of `size` bytes. Messages are received in their order, whole, and none is lost: while the other side has no room for
// more, the call waits.
//
// Blocks as long as via_timeout says; returns 0 once `data` may be used again, or a negative number. One thread may send while another
// receives.
//
// # Safety
// `data` has `size` bytes.
int via_send(ViaChann vc,
             const void *data,
             int size);

// Receives the next message into `data`, where there is room for `size` bytes. A message that is longer is not taken (via_size tells its
// length).
//
// Blocks as long as via_timeout says. Returns the length of the message, or a negative number.
//
// # Safety
// `data` has room for `size` bytes.
int via_recv(ViaChann vc,
             void *data,
             int size);

// Closes the channel: the other side receives what was sent, and then hears of the end. Not while another thread is in a call on it.
//
// Returns 0 or a negative number.
int via_close(ViaChann vc);

// The length of the next message. Blocks until one comes, as long as via_timeout says. Returns it, or a negative number.
int via_size(ViaChann vc);

// How long each call on the channel may take from now on, in milliseconds; negative: as long as it takes, as at first all but via_connect. Returns 0 or a
// negative number.
int via_timeout(ViaChann vc,
                int limit_ms);

// Waits until one of `count` connected channels can do what its `events` ask for, and fills in `revents`. `limit_ms`: at most so long,
// negative: as long as it takes, 0: does not block.
//
// Returns how many channels have events, 0 when the time is over, or a negative number.
//
// # Safety
// `set` has `count` entries, each with a record to point to.
int via_poll(ViaPoll *set,
             int count,
             int limit_ms);

// A descriptor for poll or epoll, the same for all channels of the process: after via_poll with a limit of 0 has found nothing, it
// becomes readable when there may be something for a channel that was asked about. Then call via_poll again. It is the library's: do not
// close it, and let no other thread wait in a call meanwhile.
//
// Returns it, or a negative number.
int via_fd(ViaChann vc);

// What a negative number means: the cause, and what to do.
const char *via_strerror(int error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OPENTOE_EVIL_H */
