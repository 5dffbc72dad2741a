/* What udp.c and overload.c share: a sender of datagrams, and the counts of the server. */
#ifndef TOE_UDP_H
#define TOE_UDP_H

#include "load.h"

/* Since the server began. */
struct udp_counts {
    uint64_t came, sent;
};

/* So much above the server's port a socket is that nobody reads, if the server is told to have one. */
enum { VICTIM_PORT = 100 };

/* attack.c: begins what goes on beside until this process ends. */
void attack_begin(const struct options *options);

struct sender;
/* A sender with a socket of its own, to the server. */
struct sender *udp_sender(const struct options *options);
/* Datagrams a second from now on; 0: as many as go. */
void udp_set_rate(struct sender *s, uint32_t rate);
void udp_send_until(struct sender *s, uint64_t end);
/* What this program has sent. */
uint64_t udp_sent(void);
/* A TCP connection to the server, over which it is asked. */
int udp_control(const struct options *options);
struct udp_counts udp_ask(int fd);

#endif
